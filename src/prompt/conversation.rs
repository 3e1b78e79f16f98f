//! A request's messages as templates see them: vLLM's `parse_chat_messages` (vllm/renderers/chat_utils.py).
//!
//! What vLLM does with a text, an image, a tool call and a tool's answer is done here. What is rarer, and what differs between
//! versions, is [`Unusual`]: the request's prompt is then not known by its tokens.

use std::{borrow::Cow, collections::BTreeMap};

use minijinja::Value;
use serde::{Deserialize, de::IgnoredAny};

use super::template::ContentFormat;

/// Why a request's tokens are not predicted. For logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unusual(pub &'static str);

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow, default)]
    content: Option<Content<'a>>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    tool_call_id: Option<Value>,
    #[serde(default)]
    name: Option<Value>,
    /// Thinking of earlier turns, and what else some templates ask for.
    #[serde(flatten)]
    other: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Content<'a> {
    #[serde(borrow)]
    Text(Cow<'a, str>),
    Parts(Vec<Part>),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Part {
    Text(String),
    Object(PartObject),
}

#[derive(Deserialize)]
struct PartObject {
    r#type: String,
    #[serde(default)]
    text: Option<String>,
    /// Null where the reader has cut the URL out.
    #[serde(default)]
    image_url: Option<IgnoredAny>,
    #[serde(default)]
    detail: Option<IgnoredAny>,
    #[serde(default)]
    uuid: Option<IgnoredAny>,
    /// Anthropic's mark, which clients send to everybody; no template looks at it.
    #[serde(default)]
    cache_control: Option<IgnoredAny>,
    #[serde(flatten)]
    other: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
struct ToolCall {
    #[serde(default)]
    id: Option<Value>,
    #[serde(default)]
    r#type: Option<Value>,
    function: Function,
    #[serde(flatten)]
    other: BTreeMap<String, IgnoredAny>,
}

#[derive(Deserialize)]
struct Function {
    name: Value,
    #[serde(default)]
    arguments: Option<Value>,
    #[serde(flatten)]
    other: BTreeMap<String, IgnoredAny>,
}

/// The conversation that a template gets. `messages` are the JSON texts of the messages, their images' URLs replaced by
/// null; `placeholder` is what stands for an image where content is one text.
///
/// # Errors
///
/// [`Unusual`].
pub fn conversation(messages: &[String], format: ContentFormat, placeholder: &str) -> Result<Vec<Value>, Unusual> {
    messages.iter().map(|text| message(text, format, placeholder)).collect()
}

fn message(text: &str, format: ContentFormat, placeholder: &str) -> Result<Value, Unusual> {
    let Message { role, content, tool_calls, tool_call_id, name, other } =
        serde_json::from_str(text).map_err(|_| Unusual("a message of an unknown shape"))?;
    // What vLLM takes from a message is a list; what is not on it, no template sees.
    const PASSED: [&str; 6] = ["reasoning", "reasoning_content", "task", "tools", "thinking", "function_call"];
    if other.keys().any(|key| PASSED.contains(&key.as_str())) || role == "developer" {
        return Err(Unusual("a message with thinking, tools or a task of its own"));
    }
    let parts = match content {
        None => Vec::new(),
        Some(Content::Text(text)) => vec![Seen::Text(text.into_owned())],
        Some(Content::Parts(parts)) => parts.into_iter().map(seen).collect::<Result<_, _>>()?,
    };
    // vLLM takes a line out of it that changes with each request.
    let billed = |part: &Seen| matches!(part, Seen::Text(text) if text.starts_with("x-anthropic-billing-header"));
    if role == "system" && parts.iter().any(billed) {
        return Err(Unusual("a billing header in a system message"));
    }
    let mut map: Vec<(&str, Value)> = vec![("role", Value::from(role.as_ref()))];
    let content = match format {
        ContentFormat::Parts if role == "tool" && parts.iter().all(|part| matches!(part, Seen::Text(_))) => {
            Value::from(joined(&parts))
        }
        ContentFormat::Parts => parts.iter().map(Seen::as_part).collect(),
        ContentFormat::Text => {
            let images = parts.iter().filter(|part| matches!(part, Seen::Image)).count();
            let texts = joined(&parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>());
            // vLLM puts the images first, each on a line of its own.
            let mut lines = vec![placeholder; images];
            lines.extend((!texts.is_empty()).then_some(texts.as_str()));
            Value::from(lines.join("\n"))
        }
    };
    map.push(("content", content));
    if let Some(calls) = tool_calls.filter(|calls| role == "assistant" && !calls.is_empty()) {
        map.push(("tool_calls", calls.into_iter().map(tool_call).collect::<Result<Vec<_>, _>>()?.into()));
    }
    if let Some(id) = tool_call_id.filter(|_| role == "tool") {
        map.push(("tool_call_id", id));
    }
    if let Some(name) = name.filter(|name| name.as_str().is_some()) {
        map.push(("name", name));
    }
    Ok(Value::from_pairs(map))
}

/// A part of a message's content.
enum Seen {
    Text(String),
    Image,
}

impl Seen {
    fn as_part(&self) -> Value {
        match self {
            Seen::Text(text) => {
                Value::from_pairs([("type", Value::from("text")), ("text", Value::from(text.as_str()))])
            }
            Seen::Image => Value::from_pairs([("type", "image")]),
        }
    }

    fn is_empty(&self) -> bool {
        matches!(self, Seen::Text(text) if text.is_empty())
    }
}

fn seen(part: Part) -> Result<Seen, Unusual> {
    let part = match part {
        Part::Text(text) => return Ok(Seen::Text(text)),
        Part::Object(part) => part,
    };
    let _ = (part.detail, part.uuid, part.cache_control);
    if !part.other.is_empty() {
        return Err(Unusual("a content part with members that a template might look at"));
    }
    match (part.r#type.as_str(), part.text, part.image_url) {
        ("text" | "input_text" | "output_text", Some(text), None) => Ok(Seen::Text(text)),
        ("image_url" | "input_image", None, _) => Ok(Seen::Image),
        _ => Err(Unusual("a content part of another type")),
    }
}

fn joined(parts: &[Seen]) -> String {
    let texts = parts.iter().filter_map(|part| match part {
        Seen::Text(text) => Some(text.as_str()),
        Seen::Image => None,
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// With its arguments as an object, which is how templates expect them.
fn tool_call(call: ToolCall) -> Result<Value, Unusual> {
    if !call.other.is_empty() || !call.function.other.is_empty() {
        return Err(Unusual("a tool call with members of its own"));
    }
    let given = call.function.arguments.unwrap_or_default();
    let parsed = match given.as_str() {
        Some(text) => serde_json::from_str(text).unwrap_or_default(),
        None => given,
    };
    let is_object = parsed.kind() == minijinja::value::ValueKind::Map;
    let arguments = if is_object { parsed } else { Value::from_pairs(Vec::<(&str, Value)>::new()) };
    let function = Value::from_pairs([("name", call.function.name), ("arguments", arguments)]);
    let head = [("id", call.id), ("type", call.r#type)].into_iter().filter_map(|(key, value)| Some((key, value?)));
    Ok(Value::from_pairs(head.chain([("function", function)])))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(message: &str, format: ContentFormat) -> Result<String, Unusual> {
        let conversation = conversation(&[message.to_owned()], format, "<image>")?;
        Ok(serde_json::to_string(&conversation[0]).unwrap())
    }

    #[test]
    fn messages_are_as_vllm_hands_them_to_templates() {
        use ContentFormat::{Parts, Text};
        for (message, format, expected) in [
            (r#"{"role":"user","content":"hi"}"#, Parts, r#"{"role":"user","content":[{"type":"text","text":"hi"}]}"#),
            (r#"{"role":"user","content":"hi"}"#, Text, r#"{"role":"user","content":"hi"}"#),
            (r#"{"role":"assistant","content":null,"x":1}"#, Parts, r#"{"role":"assistant","content":[]}"#),
            (r#"{"role":"assistant"}"#, Text, r#"{"role":"assistant","content":""}"#),
            (
                r#"{"role":"user","name":"Ann","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":null,"uuid":"u"},"b"]}"#,
                Parts,
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image"},{"type":"text","text":"b"}],"name":"Ann"}"#,
            ),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":null},{"type":"text","text":""},"b"]}"#,
                Text,
                r#"{"role":"user","content":"<image>\na\nb"}"#,
            ),
            (
                r#"{"role":"tool","tool_call_id":"1","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#,
                Parts,
                r#"{"role":"tool","content":"a\nb","tool_call_id":"1"}"#,
            ),
            (
                r#"{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\":1,\"a\":[2]}"}}]}"#,
                Parts,
                r#"{"role":"assistant","content":[],"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}}]}"#,
            ),
            (
                r#"{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":"[1"}}]}"#,
                Text,
                r#"{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}}]}"#,
            ),
        ] {
            assert_eq!(shown(message, format).as_deref(), Ok(expected), "{message}");
        }
    }

    #[test]
    fn what_is_rare_is_left_alone() {
        for message in [
            "[]",
            r#"{"content":"no role"}"#,
            r#"{"role":"developer","content":"x"}"#,
            r#"{"role":"assistant","content":"x","reasoning_content":"y"}"#,
            r#"{"role":"system","content":"x-anthropic-billing-header: cch=1"}"#,
            r#"{"role":"user","content":[{"type":"video_url","video_url":{"url":"x"}}]}"#,
            r#"{"role":"user","content":[{"type":"text","text":"x","video":1}]}"#,
            r#"{"role":"user","content":[{"text":"no type"}]}"#,
            r#"{"role":"user","content":7}"#,
        ] {
            assert!(shown(message, ContentFormat::Parts).is_err(), "{message}");
        }
    }
}
