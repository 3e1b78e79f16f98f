//! What a request asks of routing.

use bytes::Bytes;

use crate::{
    media::picture::Media,
    request::ClientRequest,
    routing::{Affinity, Asked, prompt::Prompt},
};

/// What of the body tells requests with a common beginning from others.
const AFFINITY_BYTES: usize = 1024;

/// The terms of a request; `media` is empty where pixels are not touched.
pub fn asked(body: &Bytes, client: &ClientRequest<'_>, media: &[Media]) -> Asked {
    let images = media.iter().filter_map(|media| match media {
        Media::Picture(picture) => Some(picture.name.media_id.into()),
        Media::Original(_) => None,
    });
    Asked {
        affinity: affinity(body, client, media),
        images: images.collect(),
        mm: None,
        prompt: Prompt::Chain(Vec::new()),
        model: client.model.as_deref().map(str::to_owned),
        salt: client.cache_salt.as_deref().map(str::to_owned),
    }
}

fn affinity(body: &Bytes, client: &ClientRequest<'_>, media: &[Media]) -> Affinity {
    // Of several images the largest has the most to lose.
    let size = |media: &&Media| match media {
        Media::Picture(picture) => picture.name.rgb_bytes(),
        Media::Original(original) => original.bytes.len(),
    };
    match (media.iter().max_by_key(size), client.images.first()) {
        (Some(Media::Picture(picture)), _) => Affinity::new(picture.name.media_id.prefix()),
        (Some(Media::Original(original)), _) => Affinity::of_bytes(&original.bytes),
        (None, Some(image)) => Affinity::of_bytes(image.url.as_bytes()),
        (None, None) => Affinity::of_bytes(&body[..body.len().min(AFFINITY_BYTES)]),
    }
}
