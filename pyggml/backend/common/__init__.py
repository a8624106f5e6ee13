"""What lowerings for several backends share: tables of lowerings, overlap of memory, patterns."""
