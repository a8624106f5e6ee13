"""Reading what users and strangers give, in bounded memory."""
