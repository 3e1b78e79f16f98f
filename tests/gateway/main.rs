//! The whole program, from outside: the real `mediagate` binary between clients and workers that the tests play.
//!
//! A test starts a gateway of its own on free ports (milliseconds), with workers of one of two kinds: [`support::worker`]
//! records every byte that reaches it and answers as the test says, byte by byte if need be; [`support::standin`] is the
//! Python stand-in, with the real landing code and real NIXL. The latter needs a Python that has it: the one that
//! MEDIAGATE_TEST_PYTHON names, else `.venv/bin/python`; where neither is there, those tests say so and pass.
//!
//! Nothing here asserts a duration. Tests wait for events: a line of the gateway's log, a request that arrives, a
//! connection that closes.

mod support;

mod administration;
mod cases;
mod decoding;
mod disconnects;
mod encryption;
mod failures;
mod hostile_clients;
mod hostile_workers;
mod inspect;
mod keys;
#[cfg(feature = "mm-routing")]
mod kv_events;
mod landing;
mod lanes;
mod life_cycle;
mod many_streams;
mod memory;
mod overload;
mod passthrough;
mod pieces;
mod pushed_requests;
mod pushed_surfaces;
mod refusals;
mod resizing;
mod routes;
mod stalls;
mod stateful;
mod surfaces;
mod uploads;
mod warm;
