"""Steps on both sides before a connection is used: addresses, admission, TLS and login.

`listener` and `dialer` own the sockets. The other modules decide: `admission`, `allow_list`, `puzzle` and `preamble` decide who
is admitted, `login` and `tls` authenticate both sides, and `addresses` reads addresses.
"""
