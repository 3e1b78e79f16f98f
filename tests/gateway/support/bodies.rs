//! Bodies of chat completion requests.

use serde_json::{Value, json};

/// A request of one user message with these parts.
pub fn chat(parts: &[Value]) -> String {
    json!({"model": "standin", "messages": [{"role": "user", "content": parts}]}).to_string()
}

pub fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub fn image(url: &str) -> Value {
    json!({"type": "image_url", "image_url": {"url": url}})
}

/// A request with these images and a word.
pub fn with_images<'a>(urls: impl IntoIterator<Item = &'a str>) -> String {
    let parts: Vec<_> = urls.into_iter().map(image).chain([text("what is this?")]).collect();
    chat(&parts)
}

/// A request without images.
pub fn plain() -> String {
    json!({"model": "standin", "messages": [{"role": "user", "content": "hello"}]}).to_string()
}
