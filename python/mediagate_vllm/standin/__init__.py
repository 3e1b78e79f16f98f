"""A small OpenAI-compatible server on the plugin's receiving code: try a gateway without vLLM and without a model.

It takes chat requests as vLLM does (references, data: URIs, uuids with a cache), and tells what it saw: the answer's
message is JSON, `{"images": [{"height", "width", "content_hash", "rgb_sha256", "transfer"}]}`, in the order of the
request, where `transfer` is "push" (by reference), "uuid" (known from before) or "original" (the image itself was in
the request).
"""
