"""Where remote token files are: web servers and buckets, behind one interface."""
