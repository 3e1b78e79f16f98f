//! A request whose media are loaded: all that routing and sending need to know of it.

use bytes::Bytes;

use super::{deadline::Deadline, plan::Way, surface::Surface};
use crate::{
    media::{
        content::{MediaId, Scope},
        picture::Media,
        resize::SmartResize,
    },
    request::ClientRequest,
    worker::{Belief, Worker},
};

/// See the module's documentation.
pub struct LoadedRequest<'a> {
    pub surface: &'static Surface,
    pub body: &'a Bytes,
    /// What was read in the body.
    pub client: &'a ClientRequest<'a>,
    /// Within which its images have their names.
    pub scope: &'a Scope,
    /// `media[i]` is `client.images[i]`; empty where pixels are not touched.
    pub media: &'a [Media],
    /// `names[i]` is what `client.images[i]` is called.
    pub names: &'a [MediaId],
    /// What was fetched for `client.others[i]`, in frontend decoding; what goes as it is has nothing here.
    pub others: &'a [Option<Bytes>],
    /// The rule by which its images were resized: workers of another one would make other pixels of them.
    pub resize: Option<SmartResize>,
    pub deadline: Deadline,
}

impl LoadedRequest<'_> {
    /// Whether a worker makes of the images what they were resized for.
    pub fn fits(&self, worker: &Worker) -> bool {
        self.resize.is_none() || self.resize == worker.resize()
    }

    /// The best way in which its pictures may travel to a worker.
    pub fn best_way(&self, worker: &Worker) -> Way {
        // A response that is kept is kept with the pictures of its request as they came, and shown again to who goes on
        // from it: long after a reference has been used, or a cache has forgotten what a uuid names.
        let kept = self.surface.makes_responses && !self.client.store_off && worker.keeps_responses();
        if kept { Way::Inline } else { self.surface.best_way }
    }

    /// A worker has answered: it holds these pictures now.
    pub fn teach(&self, belief: &Belief) {
        if !self.surface.fills_caches() {
            return;
        }
        for media in self.media {
            if let Media::Picture(picture) = media {
                belief.learn(&picture.name);
            }
        }
    }
}
