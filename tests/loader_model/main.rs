//! The cache against models that are obviously right: its two levels by themselves, and the loader with an origin.
#![cfg(not(feature = "shuttle"))]

#[path = "../loader_support/mod.rs"]
mod loader_support;

mod levels;
mod loader;
