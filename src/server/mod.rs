//! The HTTP server: what clients and operators can reach.
//!
//! - [`app`]: everything a handler needs, built once.
//! - [`routes`]: the list of routes. What is not on it is 404; nothing is forwarded by default.
//! - [`surface`]: the routes with JSON bodies that workers serve, and what the gateway must know of each.
//! - [`forward`]: a request to one of them on its way: read, load, dispatch.
//! - [`scan`]: what a body holds, found without holding up others. [`others`]: its video and audio.
//! - [`resize`]: whether its images are brought to the model's size first.
//! - [`loaded`]: a request whose media are loaded; [`terms`]: what it asks of routing.
//! - [`dispatch`]: from a loaded request to an answer: which worker, and who else when that fails.
//! - [`turn`]: one worker's turn with it: which way, and which other when that fails.
//! - [`send`]: one attempt: pushes start, the request goes out, and what came back. [`plan`]: how its images travel;
//!   [`head`]: the beginning of an answer, or why there is none.
//! - [`told`]: what an answer tells routing while it passes; `verify`, what the worker's events tell later.
//! - [`pass_on`]: a worker's answer becomes the client's.
//! - [`relay`]: what goes to a worker as it comes: [`uploads`], [`responses`] that a worker keeps, [`extra`] routes.
//! - [`models`]: which models there are, and who serves them.
//! - [`health`], [`warm`]: the small routes.
//! - [`admin`], [`reload`], [`watch_files`], [`status`], [`recent`]: what operators see and do.
//! - [`deadline`], [`admission`]: how long a request may take, and how many there may be.
//! - [`auth`], [`tenant`]: API keys; whose request it is.
//! - [`body`], [`headers`]: reading bodies within limits; which headers cross. [`extract`]: small things that handlers take.
//! - [`framing`]: HTTP that could be read in two ways. [`linger`]: what becomes of a body that nobody wants.
//! - [`answer`]: errors in the caller's dialect. [`debugging`]: what was done, for who may know.
//! - [`listen`]: sockets, connection limits, shutdown; [`tls`]: certificates; [`held`]: answers that nobody reads.

pub mod admin;
pub mod admission;
pub mod answer;
pub mod app;
pub mod auth;
pub mod body;
pub mod deadline;
pub mod debugging;
pub mod dispatch;
pub mod extra;
pub mod extract;
pub mod forward;
pub mod framing;
pub mod head;
pub mod headers;
pub mod health;
pub mod held;
pub mod linger;
pub mod listen;
pub mod loaded;
pub mod models;
pub mod others;
pub mod pass_on;
pub mod plan;
pub mod recent;
pub mod relay;
pub mod reload;
pub mod resize;
pub mod responses;
pub mod routes;
pub mod scan;
pub mod send;
pub mod status;
pub mod surface;
pub mod tenant;
pub mod terms;
pub mod tls;
pub mod told;
pub mod turn;
pub mod uploads;
#[cfg(feature = "mm-routing")]
mod verify;
pub mod warm;
pub mod watch_files;

pub use app::App;
