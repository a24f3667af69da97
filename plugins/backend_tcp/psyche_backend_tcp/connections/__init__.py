"""What happens before a connection is used, on both sides: addresses, admission, TLS and login.

`listener` and `dialer` own the sockets. The others decide: `admission`, `allow_list`, `puzzle` and `preamble` who may come in,
`login` and `tls` who is who, `addresses` what an address says.
"""
