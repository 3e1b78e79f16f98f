//! `mediagate warm`: has a running gateway load a list of images before clients ask for them.

use std::{error::Error, io::Write, path::Path};

use futures_util::{StreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use crate::config::WarmArgs;

/// Loads each line of the file that is no comment. Fails if an image cannot be loaded, after the others have been.
pub async fn run(args: WarmArgs) -> Result<(), Box<dyn Error>> {
    let urls = read(&args.file).await?;
    let client = reqwest::Client::builder().no_proxy().build()?;
    let order_url = format!("{}/warm", args.admin_url.trim_end_matches('/'));
    let bar = ProgressBar::new(urls.len() as u64);
    bar.set_style(ProgressStyle::with_template("{bar:40} {pos}/{len}  {per_sec}  {eta} left  {msg}")?);
    let mut failed = 0_usize;
    let mut loads = stream::iter(urls.iter().enumerate())
        .map(|(index, url)| {
            let order = json!({"url": url, "model": args.model, "tenant": args.tenant, "cache_salt": args.cache_salt});
            let request = client.post(&order_url).header("content-type", "application/json").body(order.to_string());
            async move {
                let answer = request.send().await?;
                let refused = !answer.status().is_success();
                let body = answer.bytes().await?;
                Ok::<_, reqwest::Error>((index, refused.then_some(body)))
            }
        })
        .buffer_unordered(args.concurrency.max(1));
    while let Some(load) = loads.next().await {
        // A gateway that is not there will not be there for the next one either.
        let (index, refused) = load.map_err(|error| format!("no answer from {order_url}: {error}"))?;
        if let Some(body) = refused {
            failed += 1;
            let said: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = said["error"]["message"].as_str().unwrap_or("refused");
            bar.suspend(|| writeln!(std::io::stderr(), "{}: image {}: {message}", args.file.display(), index + 1))?;
            bar.set_message(format!("{failed} failed"));
        }
        bar.inc(1);
    }
    // The summary says it all, and begins on a line of its own.
    bar.finish_and_clear();
    println!("{} of {} images are warm", urls.len() - failed, urls.len());
    if failed > 0 { Err(format!("{failed} images could not be loaded").into()) } else { Ok(()) }
}

async fn read(file: &Path) -> Result<Vec<String>, Box<dyn Error>> {
    let text =
        tokio::fs::read_to_string(file).await.map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(lines.map(str::to_owned).collect())
}
