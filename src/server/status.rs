//! The status page: what an operator wants to see at one glance, as plain HTML without a script or an asset.

use std::{
    fmt::{Display, Write},
    time::{Duration, SystemTime},
};

use axum::{
    extract::State,
    response::{Html, IntoResponse},
};
use bytesize::ByteSize;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};

use super::{admin::WorkerView, app::App, recent::RecentError, routes};

const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:14px/1.45 system-ui,sans-serif;max-width:68em;margin:2em auto;padding:0 1em;color:#1b1b1b;background:#fff}\
h1{font-size:1.4em;margin:0}h2{font-size:1.05em;margin:2em 0 .4em}p{margin:.3em 0;color:#555}\
div{overflow-x:auto}table{border-collapse:collapse;width:100%}\
th{text-align:left;font-weight:600;color:#555;border-bottom:1px solid #bbb}\
th,td{padding:.25em .8em .25em 0;vertical-align:top}td{border-bottom:1px solid #eee}\
td,th{white-space:nowrap}.w{white-space:normal;min-width:9em}\
.n{text-align:right;font-variant-numeric:tabular-nums}.ok{color:#106b21}.bad{color:#b00020;font-weight:600}\
.warn{color:#8a5a00;font-weight:600}code{font-size:.95em}\
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}p,th{color:#aaa}th{border-color:#555}td{border-color:#333}a{color:#8ab4f8}\
.ok{color:#6fcf7f}.bad{color:#ff7b88}.warn{color:#e6b450}}";

/// The page has a style and links, and nothing else: whatever markup somebody might smuggle into it stays dead.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; \
                              form-action 'none'; frame-ancestors 'none'";

/// `GET /` of the admin listener.
pub async fn page(State(app): State<App>) -> impl IntoResponse {
    let metrics = Metrics(routes::rendered(&app));
    let mut page = Page(String::new());
    page.head(&app);
    page.workers(app.registry.all().iter().map(|worker| WorkerView::of(worker)), &metrics);
    page.traffic(&metrics);
    page.memory(&metrics);
    page.errors(&app.recent.all());
    page.add("</body></html>\n");
    let headers = [
        (CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
    ];
    (headers, Html(page.0))
}

/// Metrics as text, in which single ones are looked up.
struct Metrics(String);

impl Metrics {
    /// The series of a metric: labels as they are written, and the value.
    fn series(&self, name: &str) -> impl Iterator<Item = (&str, f64)> {
        self.0.lines().filter_map(move |line| {
            let (series, value) = line.rsplit_once(' ')?;
            let labels = series.strip_prefix(name)?;
            let labels = match labels {
                "" => "",
                _ => labels.strip_prefix('{')?.strip_suffix('}')?,
            };
            Some((labels, value.parse().ok()?))
        })
    }

    /// The sum of the series that have this label; `None` if there is none.
    fn with(&self, name: &str, label: &str) -> Option<f64> {
        self.series(name).filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value).reduce(|a, b| a + b)
    }

    /// By which way pixels go to the worker with this label.
    fn lane(&self, worker: &str) -> Option<&str> {
        let mut lanes = self.series("mediagate_worker_lane");
        let (labels, _) = lanes.find(|&(labels, taken)| taken == 1.0 && labels.contains(worker))?;
        labels.split_once("lane=\"")?.1.split('"').next()
    }

    /// The values of a label and of the metric.
    fn by(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let key = format!("{label}=\"");
        let mut values: Vec<(String, f64)> = Vec::new();
        for (labels, value) in self.series(name) {
            let Some((_, rest)) = labels.split_once(&key) else { continue };
            let name = rest.split('"').next().unwrap_or_default();
            match values.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += value,
                None => values.push((name.to_owned(), value)),
            }
        }
        values.sort_by(|a, b| a.0.cmp(&b.0));
        values
    }
}

struct Page(String);

impl Page {
    fn add(&mut self, text: impl Display) {
        // Writing to a String cannot fail.
        let _ = write!(self.0, "{text}");
    }

    fn head(&mut self, app: &App) {
        let about = &app.about;
        let up = SystemTime::now().duration_since(about.started).unwrap_or_default();
        let mode = if about.frontend_decoding { "frontend decoding" } else { "URL passthrough" };
        let state = if app.leaving.is_cancelled() { " <span class=warn>shutting down</span>" } else { "" };
        self.add(format_args!(
            "<!doctype html><html lang=en><head><meta charset=utf-8>\
             <meta name=viewport content=\"width=device-width,initial-scale=1\"><link rel=icon href=\"data:,\">\
             <title>mediagate</title><style>{STYLE}</style></head>\
             <body><h1>mediagate {}{state}</h1><p>{mode}; up {}; {} of {} requests under way; configured memory {}; \
             {} API keys; <a href=\"metrics\">metrics</a>, <a href=\"workers\">workers as JSON</a></p>",
            env!("CARGO_PKG_VERSION"),
            span(up),
            app.places.taken(),
            app.places.most(),
            ByteSize(about.memory_bytes),
            app.keys.count(),
        ));
    }

    fn workers(&mut self, workers: impl Iterator<Item = WorkerView>, metrics: &Metrics) {
        self.add("<h2>Workers</h2>");
        self.table(&["id", "worker", "health", "circuit", "landing", "push speed", "requests", "models"]);
        for worker in workers {
            let label = format!("worker=\"{}\"", worker.label);
            let health = match (worker.healthy, worker.draining) {
                (false, _) => "<span class=bad>down</span>",
                (true, true) => "<span class=warn>draining</span>",
                (true, false) => "<span class=ok>up</span>",
            };
            let circuit = match worker.circuit {
                "closed" => "ok",
                "open" => "bad",
                _ => "warn",
            };
            let landing = match metrics.with("mediagate_landing_open", &label) {
                _ if worker.landing_circuit != "closed" => format!("{}: inline", worker.landing_circuit),
                Some(open) if worker.attached => match metrics.lane(&label) {
                    Some(lane) => format!("by {lane}, {open} open"),
                    None => format!("attached, {open} open"),
                },
                _ => "none: inline".to_owned(),
            };
            let speed = metrics.with("mediagate_worker_push_bytes_per_second", &label).filter(|_| worker.attached);
            let speed = speed.map_or_else(|| "–".to_owned(), |speed| format!("{}/s", size(speed)));
            let models = worker.models.iter().map(|model| escape(model)).collect::<Vec<_>>().join(", ");
            self.add(format_args!(
                "<tr><td>{}<td>{}<td>{health}<td class={circuit}>{}<td>{landing}<td>{speed}<td class=n>{}<td class=w>{models}",
                worker.id,
                escape(&worker.label),
                worker.circuit,
                worker.in_flight,
            ));
        }
        self.add("</table></div>");
    }

    fn traffic(&mut self, metrics: &Metrics) {
        self.add("<h2>Requests, images, transfers since the start</h2>");
        self.table(&["what", "by", "count"]);
        for (what, name, label) in [
            ("requests", "mediagate_requests_total", "route"),
            ("answers", "mediagate_requests_total", "status"),
            ("images", "mediagate_media_total", "from"),
            ("transfers", "mediagate_transfers_total", "outcome"),
        ] {
            for (by, count) in metrics.by(name, label) {
                self.add(format_args!("<tr><td>{what}<td>{}<td class=n>{count}", escape(&by)));
            }
        }
        self.add("</table></div>");
    }

    fn memory(&mut self, metrics: &Metrics) {
        self.add("<h2>Cache and budgets</h2>");
        self.table(&["what", "size", "in use", "waiting"]);
        for (zone, bytes) in metrics.by("mediagate_arena_bytes", "zone") {
            let used = metrics.with("mediagate_arena_used_bytes", &format!("zone=\"{zone}\"")).unwrap_or_default();
            self.add(format_args!(
                "<tr><td>arena, {}<td class=n>{}<td class=n>{}<td class=n>",
                escape(&zone),
                size(bytes),
                size(used)
            ));
        }
        for (budget, bytes) in metrics.by("mediagate_budget_bytes", "budget") {
            let label = format!("budget=\"{budget}\"");
            let free = metrics.with("mediagate_budget_free_bytes", &label).unwrap_or_default();
            let waiting = metrics.with("mediagate_budget_waiting_requests", &label).unwrap_or_default();
            let class = if waiting > 0.0 { "warn" } else { "" };
            self.add(format_args!(
                "<tr><td>{}<td class=n>{}<td class=n>{}<td class=\"n {class}\">{waiting}",
                escape(&budget),
                size(bytes),
                size(bytes - free),
            ));
        }
        self.add("</table></div>");
        if let Some(pictures) = metrics.with("mediagate_cached_pictures", "") {
            let sources = metrics.with("mediagate_cached_sources", "").unwrap_or_default();
            self.add(format_args!("<p>{pictures} pictures are kept, {sources} sources remembered</p>"));
        }
    }

    fn errors(&mut self, errors: &[RecentError]) {
        self.add("<h2>Recent errors</h2>");
        if errors.is_empty() {
            self.add("<p>None.</p>");
            return;
        }
        self.table(&["ago", "route", "status", "code", "request id"]);
        for error in errors {
            let ago = SystemTime::now().duration_since(error.at).unwrap_or_default();
            self.add(format_args!(
                "<tr><td>{}<td>{}<td>{}<td><code>{}</code><td><code>{}</code>",
                span(ago),
                error.route,
                error.status,
                error.code,
                escape(&error.request_id),
            ));
        }
        self.add("</table></div>");
    }

    fn table(&mut self, heads: &[&str]) {
        self.add("<div><table><tr>");
        for head in heads {
            let class = if ["count", "size", "in use", "waiting", "requests"].contains(head) { " class=n" } else { "" };
            self.add(format_args!("<th{class}>{head}"));
        }
    }
}

fn size(bytes: f64) -> ByteSize {
    // Sizes of memory, and no NaN: a float that is cast saturates.
    ByteSize(bytes as u64)
}

fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

/// Text as HTML: names of models and labels of metrics are others' words.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_by_name_and_label() {
        let text = "# HELP a b\na_total{route=\"x\",status=\"200\"} 2\na_total{route=\"x\",status=\"400\"} 1\n\
                    a_total_more{route=\"x\"} 9\nb 3.5\n";
        let metrics = Metrics(text.to_owned());
        assert_eq!(metrics.by("a_total", "route"), [("x".to_owned(), 3.0)]);
        assert_eq!(metrics.by("a_total", "status").len(), 2);
        assert_eq!(metrics.with("b", ""), Some(3.5));
        assert_eq!(metrics.with("a_total", "status=\"200\""), Some(2.0));
        assert_eq!(metrics.with("c", ""), None);
    }

    #[test]
    fn nobodys_words_become_markup() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
    }
}
