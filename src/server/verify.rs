//! Whether a prompt's predicted tokens were those that its worker computed: asked of the worker's own events, later.

use std::{sync::Arc, time::Duration};

use super::app::App;
use crate::{
    prompt::SelfCheck,
    routing::{Asked, Router, prompt::Prompt},
};

/// When it is looked, after the answer has begun. A long prompt may still be queued then, so only the last look counts
/// against a prediction.
const LOOKS: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(20), Duration::from_secs(60)];

/// Looks later whether the worker holds the prompt, if its model's predictions are due for a look. `named` says that the
/// worker knows the images by the names that we gave them; else only what stands before the first is compared.
pub fn later(app: &App, asked: Asked, worker: usize, named: bool) {
    let Prompt::Tokens(prompt) = &asked.prompt else { return };
    let Some(model) = app.prompts.get(asked.model.as_deref()) else { return };
    if !model.self_check.wants() {
        return;
    }
    let before_images = prompt.media.first().map(|span| span.offset).filter(|_| !named);
    let tokens = before_images.unwrap_or(prompt.ids.len());
    tokio::spawn(look(app.router.clone(), model.self_check.clone(), asked, worker, tokens));
}

async fn look(router: Arc<Router>, check: Arc<SelfCheck>, asked: Asked, worker: usize, tokens: usize) {
    let mut last = None;
    let mut waited = Duration::ZERO;
    for look in LOOKS {
        tokio::time::sleep(look.saturating_sub(waited)).await;
        waited = look;
        last = router.confirms(&asked, worker, tokens);
        if last != Some(false) {
            break;
        }
    }
    if let Some(agrees) = last {
        check.record(agrees);
    }
}
