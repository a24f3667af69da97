"""Our side of iroh: the only package of the transport that imports the library.

`endpoint` owns the sockets and the key, `links` are connections and streams, `ffi_copy` replaces a slow method of the bindings,
`own_address` keeps the address current under which others reach us. Nothing here decides about peers.
"""
