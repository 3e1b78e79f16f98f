//! What the gateway needs to know of a body, found in one pass: its model, where its images and its messages stand.

use std::{borrow::Cow, ops::Range};

use super::{
    error::RequestError,
    image::ImagePart,
    json::Reader,
    rewrite::Edits,
    shape::Shape,
    walker::{Seen, Walker},
};

/// A client's request, as far as the gateway reads it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClientRequest<'a> {
    pub model: Option<Cow<'a, str>>,
    pub stream: bool,
    /// Separates prefix caches; part of the scope of media ids.
    pub cache_salt: Option<Cow<'a, str>>,
    /// Of the Responses API: what the request continues.
    pub previous_response_id: Option<Cow<'a, str>>,
    /// Of the Responses API: whether it says `store: false`. All else lets the worker keep the response.
    pub store_off: bool,
    /// Whether it tells the image processor how to work (`mm_processor_kwargs`), which workers may be set to allow.
    pub processor_kwargs: bool,
    /// Each element of the conversation, in order: its JSON text in the body. Empty where there are several conversations.
    pub messages: Vec<Range<usize>>,
    /// The JSON text of each other member of the body that the prompt is made of, with its key, in the order of the body.
    /// Each once.
    pub prompt_members: Vec<(&'static str, Range<usize>)>,
    /// In the order in which they stand in the body.
    pub images: Vec<ImagePart<'a>>,
    /// Media of other kinds, in the order in which they stand in the body.
    pub others: Vec<OtherPart<'a>>,
    /// What must go in any case: clients' uuids.
    pub removals: Vec<Range<usize>>,
}

/// A medium that is no image.
#[derive(Debug, PartialEq, Eq)]
pub struct OtherPart<'a> {
    /// OpenAI's `param`: the path of the part.
    pub param: String,
    /// The member that makes it one, for the client.
    pub kind: &'static str,
    pub content: OtherContent<'a>,
}

/// What a medium that is no image consists of.
#[derive(Debug, PartialEq, Eq)]
pub enum OtherContent<'a> {
    /// A URL, http or data, for the worker to open; and its JSON string with the quotes.
    Url { url: Cow<'a, str>, span: Range<usize> },
    /// Its bytes; nothing is opened.
    Within,
    /// What only a client may send who could do worse anyway (embeddings), or what nobody here knows.
    Untrusted,
}

impl<'a> ClientRequest<'a> {
    /// One pass over the body.
    pub fn read(shape: &Shape, body: &'a [u8]) -> Result<Self, RequestError> {
        let mut reader = Reader::new(body)?;
        let mut walker = Walker::default();
        let mut seen = Seen::default();
        reader.object(|key, value| walker.member(shape, key, value, &mut seen))?;
        reader.end()?;
        Ok(walker.request)
    }

    /// The edits that every request needs: clients' uuids go.
    pub fn edits(&self) -> Edits {
        let mut edits = Edits::default();
        for span in &self.removals {
            edits.replace(span.clone(), String::new());
        }
        edits
    }
}

#[cfg(test)]
mod tests {
    use super::{super::walker::MAX_MESSAGES, *};
    use crate::{
        error::Fault,
        request::{
            image::{ImageSource, Place},
            shape,
        },
    };

    fn read<'a>(shape: &Shape, body: &'a str) -> ClientRequest<'a> {
        ClientRequest::read(shape, body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    fn params(shape: &Shape, body: &str) -> Vec<String> {
        read(shape, body).images.into_iter().map(|image| image.param).collect()
    }

    #[test]
    fn messages_and_what_else_the_prompt_is_made_of_are_found_as_they_stand() {
        let body = r#"{ "tools" : [ {"a": 1} ],"messages":[ {"role":"user"} , 7,{"content":[]}],"n":1,"add_generation_prompt":false}"#;
        let request = read(&shape::CHAT, body);
        let messages: Vec<_> = request.messages.iter().map(|span| &body[span.clone()]).collect();
        assert_eq!(messages, [r#"{"role":"user"}"#, "7", r#"{"content":[]}"#]);
        let members: Vec<_> = request.prompt_members.iter().map(|(key, span)| (*key, &body[span.clone()])).collect();
        assert_eq!(members, [("tools", r#"[ {"a": 1} ]"#), ("add_generation_prompt", "false")]);
        let body = format!(r#"{{{}"tools":2}}"#, r#""tools":1,"#.repeat(1000));
        let members = read(&shape::CHAT, &body).prompt_members;
        assert_eq!(members, [("tools", body.len() - 2..body.len() - 1)]);
    }

    #[test]
    fn images_are_found_wherever_a_surface_takes_them() {
        let part = r#"{"type":"image_url","image_url":{"url":"http://x"}}"#;
        let input = r#"{"type":"input_image","image_url":"http://x"}"#;
        for (shape, body, expected) in [
            (
                &shape::BATCH,
                format!(r#"{{"messages":[[{{"content":[{part}]}}],[{{"content":"a"}},{{"content":[{part}]}}]]}}"#),
                &["messages[0][0].content[0].image_url", "messages[1][1].content[0].image_url"][..],
            ),
            (
                &shape::RESPONSES,
                format!(
                    r#"{{"input":[{{"role":"user","content":[{input}]}},{{"type":"function_call_output","output":[{input}]}}]}}"#
                ),
                &["input[0].content[0].image_url", "input[1].output[0].image_url"],
            ),
            (
                &shape::EMBEDDINGS,
                format!(r#"{{"input":[[1,2],[3]],"messages":[{{"content":[{part}]}}]}}"#),
                &["messages[0].content[0].image_url"],
            ),
            (
                &shape::EMBEDDINGS,
                format!(r#"{{"input":[[{{"content":[{part}]}}]]}}"#),
                &["input[0][0].content[0].image_url"],
            ),
            (
                &shape::SCORES,
                format!(r#"{{"query":{{"content":[{part}]}},"documents":["a",{{"content":[{part}]}}]}}"#),
                &["query.content[0].image_url", "documents[1].content[0].image_url"],
            ),
            (&shape::COHERE_EMBED, r#"{"images":["http://x","data:,x"]}"#.into(), &["images[0]", "images[1]"]),
            (
                &shape::COHERE_EMBED,
                format!(r#"{{"inputs":[{{"content":[{part}]}}]}}"#),
                &["inputs[0].content[0].image_url"],
            ),
            (&shape::TEXT, format!(r#"{{"prompt":"a","messages":[{{"content":[{part}]}}]}}"#), &[]),
        ] {
            assert_eq!(params(shape, &body), expected, "{body}");
        }
    }

    #[test]
    fn anthropics_images_have_a_url_or_bytes_of_their_own() {
        let body = r#"{"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":[
            {"type":"image","source":{"type":"url","url":"http:\/\/x"}},
            {"type":"tool_result","tool_use_id":"t","content":[{"type":"text","text":"a"},
                {"source":{"data":"QU\/D","media_type":"image\/png","type":"base64"},"type":"image"}]}]},
            {"role":"assistant","content":"text"}]}"#;
        let request = read(&shape::MESSAGES, body);
        assert_eq!(request.messages.len(), 2);
        assert_eq!(request.prompt_members[0].0, "system");
        let [first, second] = &request.images[..] else { panic!("{:?}", request.images) };
        assert_eq!(first.param, "messages[0].content[0].source");
        assert_eq!(first.source, ImageSource::Url("http://x".into()));
        assert_eq!(second.param, "messages[0].content[1].content[1].source");
        assert_eq!(second.source, ImageSource::Base64 { raw: "QU\\/D", has_escapes: true });
        let mut edits = request.edits();
        for image in &request.images {
            assert!(matches!(image.place, Place::Source { .. }));
            image.place.put_url(&mut edits, "data:,y");
        }
        let changed = edits.apply(&body.to_owned().into());
        let changed: serde_json::Value = serde_json::from_slice(&changed).unwrap();
        let source = serde_json::json!({"type": "url", "url": "data:,y"});
        assert_eq!(changed["messages"][0]["content"][0]["source"], source);
        assert_eq!(changed["messages"][0]["content"][1]["content"][1]["source"], source);
    }

    #[test]
    fn what_no_surface_may_say_is_refused() {
        let anthropic = |block: &str| format!(r#"{{"messages":[{{"content":[{block}]}}]}}"#);
        for (shape, body, code) in [
            (&shape::CHAT, r#"{"kv_transfer_params":{"remote_host":"h"}}"#.into(), "transfer_params_forbidden"),
            (&shape::TEXT, r#"{"ec_transfer_params":[]}"#.into(), "transfer_params_forbidden"),
            (&shape::COHERE_EMBED, r#"{"images":[{"url":"http://x"}]}"#.into(), "invalid_image_part"),
            (&shape::COHERE_EMBED, r#"{"images":["mediagate:x"]}"#.into(), "reserved_scheme"),
            (&shape::RESPONSES, r#"{"input":[{"output":{"image_url":"http://x"}}]}"#.into(), "invalid_type"),
            (&shape::MESSAGES, anthropic(r#"{"type":"image"}"#), "invalid_image_part"),
            (&shape::MESSAGES, anthropic(r#"{"type":"image","source":null}"#), "invalid_image_part"),
            (
                &shape::MESSAGES,
                anthropic(r#"{"type":"image","source":{"type":"file","file_id":"f"}}"#),
                "invalid_image_part",
            ),
            (
                &shape::MESSAGES,
                anthropic(r#"{"type":"image","source":{"type":"url","url":"mediagate:x"}}"#),
                "reserved_scheme",
            ),
            (
                &shape::MESSAGES,
                anthropic(r#"{"type":"image","source":{"type":"url","url":"a","url":"b"}}"#),
                "duplicate_key",
            ),
        ] {
            let error = ClientRequest::read(shape, body.as_bytes()).expect_err(&body);
            assert_eq!(error.code(), code, "{body}");
        }
        assert!(read(&shape::CHAT, r#"{"kv_transfer_params":null}"#).images.is_empty());
        let messages = format!(r#"{{"messages":[{}0]}}"#, "0,".repeat(MAX_MESSAGES));
        assert_eq!(ClientRequest::read(&shape::CHAT, messages.as_bytes()).unwrap_err().code(), "too_many_messages");
    }

    #[test]
    fn what_tells_the_image_processor_how_to_work_is_noted() {
        for (members, expected) in [
            ("", false),
            (r#","mm_processor_kwargs":null"#, false),
            (r#","mm_processor_kwargs":{"max_pixels":1}"#, true),
            (r#","mm_processor_kwargs":{},"mm_processor_kwargs":null"#, true),
        ] {
            let body = format!(r#"{{"messages":[]{members}}}"#);
            assert_eq!(read(&shape::CHAT, &body).processor_kwargs, expected, "{members}");
        }
    }

    #[test]
    fn what_only_plugins_or_nobody_understands_is_noted() {
        for (shape, body) in [
            (&shape::POOLING, r#"{"data":{"url":"http://x"}}"#),
            (
                &shape::MESSAGES,
                r#"{"messages":[{"content":[{"type":"document","source":{"type":"url","url":"http://x"}}]}]}"#,
            ),
            (&shape::RESPONSES, r#"{"input":[{"content":[{"type":"input_file","file_url":"http://x"}]}]}"#),
        ] {
            let request = read(shape, body);
            assert_eq!(request.others.len(), 1, "{body}");
            assert_eq!(request.others[0].content, OtherContent::Untrusted);
        }
    }
}
