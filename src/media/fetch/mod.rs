//! Fetching images from URLs that strangers send.
