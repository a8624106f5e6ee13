r"""The formats of JSON schema's strings, as regular expressions of whole strings.

    FORMATS["date"]

Every string of a pattern is valid by the format's RFC; where a pattern is narrower than the RFC,
its comment says so. ``docs/json-schema.md`` lists them.
"""

from __future__ import annotations

_HEX = "[0-9a-fA-F]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"

# RFC 3339, years 0001 to 9999, with the days of each month and leap years
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_LEAP_YEAR = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    f"({_YEAR}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    "|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
    f"|{_LEAP_YEAR}-02-29)"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    "(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)

# RFC 3339, appendix A
_DURATION_DATE = "([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)"
_DURATION_TIME = "T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S)"
_DURATION = f"P({_DURATION_DATE}({_DURATION_TIME})?|{_DURATION_TIME}|[0-9]{{1,6}}W)"

# at most four labels of 41 characters, no two hyphens in a row (no punycode), the last one
# begins with a letter
_LABEL = "[a-zA-Z0-9](-?[a-zA-Z0-9]){0,20}"
_HOSTNAME = rf"({_LABEL}\.){{0,3}}[a-zA-Z](-?[a-zA-Z0-9]){{0,20}}"
# RFC 5321's dot-string, ASCII, at a host name
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]"
_EMAIL = rf"{_ATOM}{{1,30}}(\.{_ATOM}{{1,30}})?@{_HOSTNAME}"

_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
# RFC 4291 without an IPv4 address at the end
_H = f"{_HEX}{{1,4}}"
_IPV6 = (
    f"(({_H}:){{7}}{_H}"
    f"|({_H}:){{1,6}}:{_H}|({_H}:){{1,5}}(:{_H}){{2}}|({_H}:){{1,4}}(:{_H}){{3}}"
    f"|({_H}:){{1,3}}(:{_H}){{4}}|({_H}:){{1,2}}(:{_H}){{5}}|{_H}:(:{_H}){{6}}"
    f"|({_H}:){{1,7}}:|:(:{_H}){{1,7}}|::)"
)

# RFC 3986 without user names and addresses in brackets; few nested repetitions, so that a bound
# of the length leaves room for each part
_PERCENT = f"%{_HEX}{{2}}"
_PCHAR = rf"([a-zA-Z0-9._~!$&'()*+,;=:@-]|{_PERCENT})"
_PATH_CHAR = rf"([a-zA-Z0-9._~!$&'()*+,;=:@/-]|{_PERCENT})"
_QUERY_CHAR = rf"([a-zA-Z0-9._~!$&'()*+,;=:@/?-]|{_PERCENT})"
_NO_COLON = rf"([a-zA-Z0-9._~!$&'()*+,;=@-]|{_PERCENT})"
_AUTHORITY = "//[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]{1,5})?"
_AFTER_PATH = rf"(\?{_QUERY_CHAR}*)?(#{_QUERY_CHAR}*)?"
_SCHEME = "[a-zA-Z][a-zA-Z0-9+.-]{0,15}"
_URI = f"{_SCHEME}:({_AUTHORITY}(/{_PATH_CHAR}*)?|{_PCHAR}{_PATH_CHAR}*){_AFTER_PATH}"
_URI_REFERENCE = (
    f"({_URI}|({_AUTHORITY}(/{_PATH_CHAR}*)?|/({_PCHAR}{_PATH_CHAR}*)?"
    f"|{_NO_COLON}+(/{_PATH_CHAR}*)?)?{_AFTER_PATH})"
)
# RFC 6570: literals and expressions of names, without prefixes
_VARIABLE = r"[a-zA-Z][a-zA-Z0-9_]*\*?"
_URI_TEMPLATE = rf"([a-zA-Z0-9._~:/?#@!$&()*+,;=-]|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*"

_JSON_POINTER = "(/([^/~]|~[01])*)*"

FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "hostname": _HOSTNAME,
    "idn-hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "iri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri-reference": _URI_REFERENCE,
    "uri-template": _URI_TEMPLATE,
    "uuid": _UUID,
    **{f"uuid{version}": _UUID for version in range(1, 6)},  # llama.cpp's names
    "json-pointer": _JSON_POINTER,
    "relative-json-pointer": f"(0|[1-9][0-9]?)(#|{_JSON_POINTER})",
}
