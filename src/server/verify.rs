//! Whether a prompt's predicted tokens are those that its worker computes: as its own events tell, some time later.

use std::{sync::Arc, time::Duration};

use super::app::App;
use crate::{
    prompt::SelfCheck,
    routing::{Asked, Decision, Router, kv::sent::SentPrompt, prompt::Prompt},
};

/// When it is looked, after the answer has begun. A long prompt may still be queued then, so only the last look counts
/// against a prediction.
const LOOKS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(60)];

/// A prompt's answer has begun. Looks later whether the worker computed its tokens, if it is to be compared.
pub fn later(app: &App, asked: Asked, decision: &Decision) {
    let Some(sent) = &decision.sent else { return };
    sent.answered();
    let Some(model) = app.prompts.get(asked.model.as_deref()).filter(|_| asked.checked) else { return };
    tokio::spawn(look(app.router.clone(), model.self_check.clone(), asked, decision.index, sent.clone()));
}

async fn look(router: Arc<Router>, check: Arc<SelfCheck>, asked: Asked, worker: usize, sent: Arc<SentPrompt>) {
    let mut last = None;
    let mut waited = Duration::ZERO;
    for look in LOOKS {
        tokio::time::sleep(look.saturating_sub(waited)).await;
        waited = look;
        last = agrees(&router, &asked, worker, &sent);
        if last == Some(true) {
            break;
        }
    }
    if let Some(agrees) = last {
        check.record(agrees);
    }
}

/// Whether the worker has computed the prompt's tokens; `None` where nothing speaks for it or against it.
fn agrees(router: &Router, asked: &Asked, worker: usize, sent: &SentPrompt) -> Option<bool> {
    let Prompt::Tokens(prompt) = &asked.prompt else { return None };
    if sent.is_computed(prompt.ids.len()) {
        return Some(true);
    }
    if asked.named {
        return router.confirms(asked, worker, prompt.ids.len());
    }
    // Images that the worker knows by names of its own may have been there before, and then no event tells of them.
    let before_images = prompt.media.first().map_or(prompt.ids.len(), |span| span.offset);
    let begins = sent.is_computed(before_images) || router.confirms(asked, worker, before_images) != Some(false);
    (!begins || sent.diverged()).then_some(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        routing::{
            Affinity, Candidate, RoutePolicy, Weights,
            kv::{
                KvIndex, Lane, View,
                events::{BlockExtra, KvEvent, Stored},
            },
            prompt::{MediaSpan, MmHash, PromptTokens},
        },
        worker::load::Busy,
    };

    const SIZE: usize = 4;

    /// A worker that publishes all, and a request that it was sent: eight tokens, an image of eight, and eight more.
    struct Case {
        router: Router,
        lane: Lane,
        asked: Asked,
        sent: Arc<SentPrompt>,
    }

    impl Case {
        fn new(named: bool, others: usize) -> Self {
            let index = Arc::new(KvIndex::new(100));
            let mut lane = index.lane(0, "0").unwrap();
            lane.set_view(View::Complete);
            let media = vec![MediaSpan { hash: MmHash::of_identifier("ours"), offset: 8, length: 8 }];
            let asked = Asked {
                affinity: Affinity::new(0),
                images: vec![media[0].hash],
                mm: None,
                prompt: Prompt::Tokens(Arc::new(PromptTokens { ids: (0..24).collect(), media })),
                model: None,
                salt: None,
                named,
                checked: true,
            };
            let router = Router::new(RoutePolicy::MmKv, Weights::default(), index);
            let busy = Busy { others, ..Busy::default() };
            let decision = router.choose(&asked, &[Candidate { busy, ..Candidate::default() }]).unwrap();
            Case { router, lane, asked, sent: decision.sent.unwrap() }
        }

        /// The worker computes these tokens, and calls the image so.
        fn computes(&mut self, ids: impl Iterator<Item = u32>, image: &str) {
            let token_ids: Vec<u32> = ids.collect();
            let blocks = token_ids.len() / SIZE;
            let offset = |block: usize| (2..4).contains(&block).then_some(8 - (block * SIZE) as i64);
            let media =
                |block| offset(block).map(|offset| (MmHash::of_identifier(image), offset)).into_iter().collect();
            self.lane.apply(KvEvent::Stored(Stored {
                hashes: (0..blocks as u64).collect(),
                block_size: SIZE,
                extra: (0..blocks).map(|block| BlockExtra { media: media(block), ..BlockExtra::default() }).collect(),
                token_ids,
                ..Stored::default()
            }));
        }

        fn agrees(&self) -> Option<bool> {
            agrees(&self.router, &self.asked, 0, &self.sent)
        }
    }

    #[test]
    fn tokens_that_the_worker_computed_agree_whatever_it_calls_the_image() {
        for (named, image) in [(true, "ours"), (false, "theirs")] {
            let mut case = Case::new(named, 0);
            case.computes(0..24, image);
            assert_eq!(case.agrees(), Some(true));
        }
    }

    #[test]
    fn other_tokens_do_not_agree() {
        // Before the image, and after it.
        for (named, image, at) in [(true, "ours", 2), (true, "ours", 20), (false, "theirs", 2), (false, "theirs", 20)] {
            let mut case = Case::new(named, 0);
            case.computes((0..24).map(|id| if id == at { 99 } else { id }), image);
            assert_eq!(case.agrees(), Some(false), "{image} {at}");
        }
    }

    #[test]
    fn what_others_may_have_sent_and_what_may_have_been_there_before_says_nothing() {
        let mut case = Case::new(false, 1);
        case.computes((0..24).map(|id| if id == 20 { 99 } else { id }), "theirs");
        assert_eq!(case.agrees(), None);
        // The beginning alone, and no event of the rest: images may have been there under a name that is not known.
        let mut case = Case::new(false, 0);
        case.computes(0..8, "theirs");
        assert_eq!(case.agrees(), None);
    }
}
