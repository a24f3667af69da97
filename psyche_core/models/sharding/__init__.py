"""Divides one model among several processes of one client; see docs/how-to/several-devices.md."""
