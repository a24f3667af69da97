"""A store plugin for Psyche: models on a WebDAV server, `dav://` and `davs://`."""
