"""Commands for members: `psyche client`, its status, `predownload` and `sidecar`."""
