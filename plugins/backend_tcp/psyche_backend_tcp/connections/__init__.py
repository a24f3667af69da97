"""What happens before a connection is used, on both sides: addresses, admission, TLS and login."""
