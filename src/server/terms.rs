//! What a request asks of routing.

use std::{ops::Range, sync::Arc};

#[cfg(feature = "mm-routing")]
use futures_util::future::try_join_all;

use super::{app::App, loaded::LoadedRequest};
use crate::{
    media::{
        content::{MediaId, Scope},
        picture::Media,
        url_names::{UrlIdentity, UrlNames},
    },
    request::ClientRequest,
    routing::{
        Affinity, Asked,
        chain::Chain,
        prompt::{MmHash, MmRoutingInfo, Prompt},
    },
};
#[cfg(feature = "mm-routing")]
use crate::{
    media::{dimensions::PictureSize, picture::Picture},
    prompt::PromptRequest,
    routing::prompt::{MmImage, PromptTokens},
};

/// What of the body tells requests with a common beginning from others.
const AFFINITY_BYTES: usize = 1024;

/// Members of the body that templates write before the conversation, or that change what they make of it. What only
/// concerns the end of the prompt is not among them.
const HEAD_MEMBERS: [&str; 5] = ["tools", "documents", "reasoning_effort", "chat_template", "chat_template_kwargs"];

/// What the images of a request are called, in order: by their pixels where they are decoded here, else by their URLs.
pub fn names(urls: &UrlNames, scope: &Scope, client: &ClientRequest<'_>, media: &[Media]) -> Vec<MediaId> {
    if media.is_empty() {
        return client.images.iter().map(|image| image.source.name(urls, scope)).collect();
    }
    let name = |media: &Media| match media {
        Media::Picture(picture) => picture.name.media_id,
        Media::Original(original) => original.name.id,
    };
    media.iter().map(name).collect()
}

/// How many bytes of a request are read for [`names`].
pub fn named_bytes(client: &ClientRequest<'_>, media: &[Media]) -> usize {
    if media.is_empty() { client.images.iter().map(|image| image.place.span().len()).sum() } else { 0 }
}

impl LoadedRequest<'_> {
    /// What the request asks of routing. With a model's files this may wait for the sizes of images, as long as is
    /// configured.
    #[cfg_attr(not(feature = "mm-routing"), expect(clippy::unused_async, reason = "nothing to wait for"))]
    pub async fn terms(&self, app: &App) -> Asked {
        let images: Vec<MmHash> = self.names.iter().copied().map(MmHash::from).collect();
        #[cfg(feature = "mm-routing")]
        let (mm, tokens) = self.with_model(app, &images).await;
        #[cfg(not(feature = "mm-routing"))]
        let (mm, tokens): (Option<MmRoutingInfo>, _) = (None, None);
        #[cfg(feature = "mm-routing")]
        let checked = tokens.is_some()
            && app.prompts.get(self.client.model.as_deref()).is_some_and(|model| model.self_check.wants());
        #[cfg(not(feature = "mm-routing"))]
        let checked = false;
        let prompt = match tokens {
            Some(tokens) => Prompt::Tokens(Arc::new(tokens)),
            None => Prompt::Chain(self.chain(&images)),
        };
        Asked {
            affinity: self.affinity(mm.as_ref()),
            images,
            mm,
            prompt,
            model: self.client.model.as_deref().map(str::to_owned),
            salt: self.client.cache_salt.as_deref().map(str::to_owned),
            named: self.names.is_empty() || !self.media.is_empty() || app.url_names.identity == UrlIdentity::Immutable,
            checked,
        }
    }

    /// What the model's files say: the images with their tokens, and the tokens of the prompt.
    #[cfg(feature = "mm-routing")]
    async fn with_model(&self, app: &App, images: &[MmHash]) -> (Option<MmRoutingInfo>, Option<PromptTokens>) {
        let Some(model) = app.prompts.get(self.client.model.as_deref()) else { return (None, None) };
        let Some(counter) = &model.image_tokens else { return (None, None) };
        // They may change how large images are shown to the model.
        if self.client.processor_kwargs {
            tracing::debug!(
                "the prompt's tokens are not predicted: it has settings of its own for the image processor"
            );
            crate::observe::prompt("unusual");
            return (None, None);
        }
        let sizes = try_join_all((0..images.len()).map(|index| self.size(app, index))).await;
        let counted = sizes.and_then(|sizes| {
            let images = images.iter().zip(sizes);
            let count = |(&hash, size): (_, PictureSize)| {
                let tokens = counter.count(size.height, size.width);
                let tokens =
                    tokens.map_err(|error| tracing::debug!(?size, %error, "an image's tokens are not known"))?;
                Ok(MmImage { hash, tokens })
            };
            images.map(count).collect::<Result<Vec<_>, ()>>()
        });
        let Ok(counted) = counted else {
            crate::observe::prompt("image_size");
            return (None, None);
        };
        // Other surfaces make messages of their requests in ways of their own.
        let tokens = if self.surface.name == "chat_completions" {
            let request = PromptRequest::new(self.body, self.client, counted.clone());
            model.write(request).await
        } else {
            crate::observe::prompt("surface");
            None
        };
        (Some(MmRoutingInfo::new(counted)), tokens)
    }

    /// The size of one image, upright, as the model is shown it. Why it is not known is counted where it is read.
    #[cfg(feature = "mm-routing")]
    async fn size(&self, app: &App, index: usize) -> Result<PictureSize, ()> {
        match (self.media.get(index), self.client.images.get(index), &app.dimensions) {
            (Some(Media::Picture(Picture { name, .. })), ..) => {
                Ok(PictureSize { height: name.height, width: name.width })
            }
            (None, Some(part), Some(dimensions)) => {
                let size = dimensions.of(self.names[index], &part.source.text(self.body)).await;
                size.map_err(|reason| tracing::debug!(index, %reason, "no size"))
            }
            // A file that is not decoded.
            _ => Err(()),
        }
    }

    fn affinity(&self, mm: Option<&MmRoutingInfo>) -> Affinity {
        // Of several images the largest has the most to lose.
        let size = |index: usize| match (mm.map(MmRoutingInfo::images), self.media.get(index)) {
            (Some(images), _) => images.get(index).map_or(0, |image| image.tokens),
            (None, Some(Media::Picture(picture))) => picture.name.rgb_bytes(),
            (None, Some(Media::Original(original))) => original.name.file_bytes,
            (None, None) => 0,
        };
        // The first of equals, so that a conversation stays where it began.
        match (0..self.names.len()).rev().max_by_key(|&index| size(index)) {
            Some(largest) => Affinity::new(self.names[largest].prefix()),
            None => Affinity::of_bytes(&self.body[..self.body.len().min(AFFINITY_BYTES)]),
        }
    }

    /// The chain over what the prompt is made of, its images standing for themselves and not for the text of their URLs.
    fn chain(&self, images: &[MmHash]) -> Vec<u64> {
        let LoadedRequest { body, scope, client, .. } = self;
        let model = client.model.as_deref().unwrap_or_default();
        let mut chain = Chain::new([model.as_bytes(), scope.as_bytes()]);
        for (key, span) in client.prompt_members.iter().filter(|(key, _)| HEAD_MEMBERS.contains(key)) {
            chain.text(key.as_bytes());
            chain.text(&body[span.clone()]);
        }
        // What is not text of a message: images, and what the gateway takes out. In the order of the body, as both are.
        let shown = client.images.iter().zip(images).map(|(part, &image)| (part.place.span(), Some(image)));
        let mut holes: Vec<(Range<usize>, Option<MmHash>)> =
            shown.chain(client.removals.iter().map(|span| (span.clone(), None))).collect();
        holes.sort_unstable_by_key(|(span, _)| span.start);
        let mut holes = holes.into_iter().peekable();
        for message in &client.messages {
            let mut at = message.start;
            while let Some((span, image)) = holes.next_if(|(span, _)| span.start < message.end) {
                chain.text(&body[at.min(span.start)..span.start]);
                if let Some(image) = image {
                    chain.image(image);
                }
                at = span.end.clamp(at, message.end);
            }
            chain.text(&body[at..message.end]);
        }
        chain.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use http::HeaderMap;

    use super::*;
    use crate::server::{deadline::Deadline, surface::SURFACES};

    fn chain_of(body: &str) -> Vec<u64> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let surface = &SURFACES[0];
        let client = ClientRequest::read(surface.shape, &body).unwrap();
        let scope = Scope::default();
        let names = names(&UrlNames::default(), &scope, &client, &[]);
        let images: Vec<MmHash> = names.iter().copied().map(MmHash::from).collect();
        let request = LoadedRequest {
            surface,
            body: &body,
            client: &client,
            scope: &scope,
            media: &[],
            names: &names,
            others: &[],
            resize: None,
            deadline: Deadline::of(&HeaderMap::new(), Duration::from_secs(1)).unwrap(),
        };
        request.chain(&images)
    }

    fn common(a: &[u64], b: &[u64]) -> usize {
        a.iter().zip(b).take_while(|(a, b)| a == b).count()
    }

    #[test]
    fn a_conversation_that_goes_on_shares_its_whole_chain_with_what_it_was() {
        let image = r#"{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}"#;
        let turns = format!(r#"{{"role":"system","content":"Be brief."}},{{"role":"user","content":[{image}]}}"#);
        let first = chain_of(&format!(r#"{{"model":"m","messages":[{turns}],"max_tokens":5}}"#));
        let more = r#",{"role":"assistant","content":"A cat."},{"role":"user","content":"Its colour?"}"#;
        let second = chain_of(&format!(r#"{{"model":"m","messages":[{turns}{more}],"temperature":0}}"#));
        assert_eq!(common(&first, &second), first.len());
        assert!(second.len() > first.len());
    }

    #[test]
    fn the_chain_knows_images_by_name_and_sees_no_clients_uuid() {
        let with = |url: &str, uuid: &str| {
            chain_of(&format!(
                r#"{{"messages":[{{"role":"user","content":[{{"type":"image_url","image_url":"{url}"{uuid}}},{{"type":"text","text":"x"}}]}}]}}"#
            ))
        };
        let base = with("https://example.com/a.png", "");
        assert_eq!(base, with("https://example.com/a.png", r#","uuid":"mine""#));
        // Escapes of the same URL are the same URL.
        assert_eq!(base, with(r"https:\/\/example.com/a.png", ""));
        let other = with("https://example.com/b.png", "");
        assert!(common(&base, &other) == 1 && base.len() == other.len(), "only what stands before the image is common");
        // However long the URL is.
        let data = format!("data:image/png;base64,{}", "AA/A".repeat(100_000));
        assert_eq!(with(&data, "").len(), base.len());
        assert_eq!(with(&data, ""), with(&data.replace('/', r"\/"), ""));
    }

    #[test]
    fn what_stands_at_the_head_of_prompts_is_at_the_head_of_the_chain() {
        let plain = chain_of(r#"{"messages":[{"role":"user","content":"x"}]}"#);
        let tools = chain_of(r#"{"messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}"#);
        let salted = chain_of(r#"{"messages":[{"role":"user","content":"x"}],"cache_salt":"s"}"#);
        let model = chain_of(r#"{"messages":[{"role":"user","content":"x"}],"model":"m"}"#);
        let end = chain_of(r#"{"messages":[{"role":"user","content":"x"}],"add_generation_prompt":true}"#);
        assert_eq!(common(&plain, &tools), 0);
        assert_eq!(common(&plain, &model), 0);
        assert_eq!(plain, end);
        // The scope of a salted request is another, which the handler knows.
        assert_eq!(plain, salted);
    }
}
