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
