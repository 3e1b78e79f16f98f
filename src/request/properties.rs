//! The reader against a simple model: what it finds in any document is what a walk over the parsed document finds.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{ClientRequest, ImageSource, shape};

/// Any JSON, not deep.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z\"\\\\/\u{7f}-\u{2fff}{}\\[\\],:]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{0,8}", inner, 0..4)
                .prop_map(|members| Value::from(Map::from_iter(members))),
        ]
    })
}

/// A part that is an image, a text, or nothing that anybody knows.
fn part() -> impl Strategy<Value = Value> {
    let url = "(http://[a-z]{1,8}/[a-z?=/\"\\\\é]{0,8}|data:,[a-z]{0,8})";
    prop_oneof![
        (url, anything()).prop_map(|(url, extra)| json!({"type": "image_url", "image_url": {"url": url, "x": extra}})),
        (url, anything()).prop_map(|(url, extra)| json!({"x": extra, "image_url": url})),
        (url, anything()).prop_map(|(url, uuid)| json!({"uuid": uuid, "type": "input_image", "image_url": url})),
        (".{0,12}", anything()).prop_map(|(text, uuid)| json!({"type": "text", "text": text, "uuid": uuid})),
        anything().prop_filter("a part is no list", |value| !value.is_object()),
    ]
}

fn message() -> impl Strategy<Value = Value> {
    prop_oneof![
        prop::collection::vec(part(), 0..4).prop_map(|parts| json!({"role": "user", "content": parts})),
        ".{0,12}".prop_map(|text| json!({"content": text, "role": "system"})),
        anything().prop_filter("a message is no list", |value| !value.is_object()),
    ]
}

/// A document as somebody else may write it: white space anywhere between tokens, characters escaped or not.
fn write(value: &Value, odd: &mut impl FnMut() -> usize, out: &mut String) {
    let space =
        |odd: &mut dyn FnMut() -> usize, out: &mut String| out.push_str(["", "", " ", "\n\t", "\r "][odd() % 5]);
    let string = |text: &str, odd: &mut dyn FnMut() -> usize, out: &mut String| {
        out.push('"');
        for unit in text.chars() {
            let must = matches!(unit, '"' | '\\') || (unit as u32) < 0x20;
            match odd() % 4 {
                0 if unit == '/' => out.push_str("\\/"),
                choice if must || choice == 1 => {
                    for unit in unit.encode_utf16(&mut [0; 2]) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => out.push(unit),
            }
        }
        out.push('"');
    };
    space(odd, out);
    match value {
        Value::String(text) => string(text, odd, out),
        Value::Array(values) => {
            out.push('[');
            for (index, value) in values.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                write(value, odd, out);
            }
            space(odd, out);
            out.push(']');
        }
        Value::Object(members) => {
            out.push('{');
            for (index, (key, value)) in members.iter().enumerate() {
                out.push_str(if index > 0 { "," } else { "" });
                space(odd, out);
                string(key, odd, out);
                space(odd, out);
                out.push(':');
                write(value, odd, out);
            }
            space(odd, out);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
    space(odd, out);
}

/// The URLs of a conversation, and the conversation without uuids in parts: by the parsed document.
fn model(document: &Value) -> (Vec<String>, Value) {
    let mut without = document.clone();
    let mut urls = Vec::new();
    let messages = without["messages"].as_array_mut().expect("the generator makes a list");
    for part in messages.iter_mut().filter_map(|message| message.get_mut("content")?.as_array_mut()).flatten() {
        let Some(part) = part.as_object_mut() else { continue };
        part.remove("uuid");
        if let Some(image) = part.get("image_url") {
            let url = image.as_str().or_else(|| image["url"].as_str()).expect("the generator makes a URL");
            urls.push(url.to_owned());
        }
    }
    (urls, without)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn what_is_found_in_any_document_is_what_a_walk_over_its_values_finds(
        messages in prop::collection::vec(message(), 0..4),
        others in prop::collection::hash_map("[a-j]{1,6}", anything(), 0..4),
        seed: u64,
    ) {
        let mut document = Map::from_iter(others);
        document.insert("messages".into(), messages.clone().into());
        let document = Value::from(document);
        let mut state = seed;
        let mut odd = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as usize
        };
        let mut text = String::new();
        write(&document, &mut odd, &mut text);
        prop_assert_eq!(&serde_json::from_str::<Value>(&text).unwrap(), &document, "the writer is right");

        let request = ClientRequest::read(&shape::CHAT, text.as_bytes()).unwrap();
        let (urls, without) = model(&document);
        let found: Vec<String> = request.images.iter().map(|image| match &image.source {
            ImageSource::Url(url) => url.to_string(),
            ImageSource::EscapedDataUri(raw) => serde_json::from_str(&format!("\"{raw}\"")).unwrap(),
            ImageSource::Base64 { .. } => unreachable!("no block of Anthropic's"),
        }).collect();
        prop_assert_eq!(found, urls);
        let spans = request.messages.iter().map(|span| serde_json::from_str::<Value>(&text[span.clone()]).unwrap());
        prop_assert_eq!(spans.collect::<Vec<_>>(), messages);
        let changed = request.edits().apply(&text.clone().into());
        prop_assert_eq!(serde_json::from_slice::<Value>(&changed).unwrap(), without);
    }
}
