//! `mediagate serve`: puts the parts together, runs them, and takes them down in order.

use std::{error::Error, sync::Arc, time::Duration};

use http::HeaderValue;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{ServeArgs, read_secret},
    media::{fetch::Fetcher, loader::MediaLoader},
    memory::{Arena, Budget, limits},
    model::Models,
    observe,
    routing::watch,
    server::{
        App, app,
        auth::ApiKeys,
        listen::{self, Patience},
        routes,
        tenant::Tenancy,
    },
    transfer::{Landings, NixlAgent, library::NixlLibrary},
    worker::{
        Registry, WorkerClient,
        attach::Identity,
        circuit::CircuitSettings,
        monitor::{self, MonitorSettings, Transfers},
        probe::Probe,
    },
};

/// Shortest attach secret: 128 bits, if it is random bytes.
const MIN_SECRET_BYTES: usize = 16;

/// Pushes to one worker may pin this part of the arena at a time: what one that hangs can take from the others.
const PINNED_SHARE: u64 = 8;

/// For monitors to give grants back.
const DETACH_GRACE: Duration = Duration::from_secs(2);

pub async fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    args.validate()?;
    observe::tracing::start(&args.log, args.log_format)?;
    let metrics = observe::install()?;
    limits::raise_descriptors();
    // Before anybody could learn that the gateway runs and send one.
    let mut signals = EndSignals::new()?;
    let registry = Registry::new(&args.workers, CircuitSettings::default())?;
    let client = WorkerClient::new()?;
    let keys = match &args.api_key_file {
        Some(path) => ApiKeys::parse(&read_secret(path)?)?,
        None => ApiKeys::default(),
    };
    if args.tenancy == Tenancy::ApiKey && !keys.required() {
        tracing::warn!("--tenancy api-key without --api-key-file: a client can be whatever tenant it says");
    }
    let worker_authorization = match &args.worker_api_key_file {
        Some(path) => {
            let mut value = HeaderValue::try_from(format!("Bearer {}", read_secret(path)?))
                .map_err(|_| "the worker API key has characters that a header cannot hold")?;
            value.set_sensitive(true);
            Some(value)
        }
        None => None,
    };

    // Off the async threads: tokenizers are megabytes.
    let paths = args.model_paths.clone();
    let models = tokio::task::spawn_blocking(move || Models::read(&paths)).await??;
    for (name, model) in models.all() {
        tracing::info!(name, model_type = model.model_type(), dir = %model.dir.display(), "model files are read");
    }

    let mut loader = None;
    let mut transfers = None;
    if args.frontend_decoding {
        let layout = args.arena_layout().with_reserve(Probe::ARENA_BYTES);
        // Faulting gigabytes in takes a while.
        let arena = tokio::task::spawn_blocking(move || Arena::with_layout(layout)).await??;
        loader = Some(MediaLoader::new(args.media.config(), arena.clone())?);
        transfers = set_up_transfers(&args, arena).await?;
    }
    let url_check = match loader {
        Some(_) => None,
        None => Some(Fetcher::new(&args.media.config().fetch)?),
    };

    // Before anything is announced: a port that is taken ends the start.
    let public = listen::bind(args.listen).await?;
    let admin = listen::bind(args.admin_listen).await?;
    let stop = CancellationToken::new();
    let interval = Duration::from_millis(args.health_interval_ms);
    let settings = MonitorSettings { client: client.clone(), transfers, interval };
    let monitors = tokio::spawn(monitor::watch(registry.changes(), settings, stop.clone()));

    let router = watch::start(&args.routing(), &registry, &client, &stop);

    let app = App::new(app::Inner {
        registry,
        router,
        client,
        loader,
        url_check,
        keys,
        tenancy: args.tenancy.clone(),
        worker_authorization,
        bodies: Budget::new(args.body_budget_bytes()),
        limits: args.limits(),
        resize: args.resize,
        models,
        leaving: CancellationToken::new(),
        metrics,
    });
    tracing::info!(
        listen = %public.local_addr()?,
        admin = %admin.local_addr()?,
        workers = app.registry.all().len(),
        frontend_decoding = args.frontend_decoding,
        memory_bytes = args.budgets().sum(),
        "serving"
    );
    let patience = Patience {
        idle: Duration::from_millis(args.idle_timeout_ms),
        grace: Duration::from_millis(args.shutdown_grace_ms),
    };
    // Workers stay attached until the last request is through.
    let (stop_public, stop_admin) = (CancellationToken::new(), CancellationToken::new());
    let public = tokio::spawn(listen::serve(public, routes::public(app.clone()), stop_public.clone(), patience));
    let operators = Patience { grace: DETACH_GRACE, ..patience };
    let admin = tokio::spawn(listen::serve(admin, routes::admin(app.clone()), stop_admin.clone(), operators));
    signals.next().await;
    tracing::info!("shutting down");
    app.leaving.cancel();
    stop_public.cancel();
    public.await?;
    // Operators can watch the last requests go.
    stop_admin.cancel();
    admin.await?;
    stop.cancel();
    if tokio::time::timeout(DETACH_GRACE, monitors).await.is_err() {
        tracing::debug!("a worker did not answer the detach");
    }
    Ok(())
}

/// NIXL, where it is there. Without it frontend decoding works too, inline, and says so in one line.
async fn set_up_transfers(args: &ServeArgs, arena: Arc<Arena>) -> Result<Option<Transfers>, Box<dyn Error>> {
    let secret = match &args.attach_key_file {
        Some(path) => {
            let secret = read_secret(path)?;
            if secret.len() < MIN_SECRET_BYTES {
                return Err(format!("{}: an attach key has at least {MIN_SECRET_BYTES} bytes", path.display()).into());
            }
            Some(secret)
        }
        None => None,
    };
    let identity = Identity::new(secret.as_deref().map(str::as_bytes));
    let landings = Arc::new(Landings::default());
    let probe = Probe::new(&arena).ok_or("the arena has no room for a probe")?;
    let (dir, name) = (args.nixl_lib_dir.clone(), format!("mediagate-gateway-{}", identity.incarnation));
    let started = {
        let (landings, arena) = (landings.clone(), arena.clone());
        tokio::task::spawn_blocking(move || -> Result<(NixlLibrary, NixlAgent), Box<dyn Error + Send + Sync>> {
            let library = NixlLibrary::load(dir.as_deref())?;
            let heard = Box::new(move |peer: &str, message: &str| landings.notified(peer, message));
            let agent = NixlAgent::start(&library, &name, &arena, heard)?;
            Ok((library, agent))
        })
        .await?
    };
    match started {
        Ok((library, agent)) => {
            tracing::info!(library = %library.path().display(), arena_bytes = arena.bytes(), "NIXL is up");
            let want_bytes = args.landing_bytes.as_u64();
            let pinned_bytes = arena.bytes() as u64 / PINNED_SHARE;
            Ok(Some(Transfers {
                agent,
                landings,
                probe,
                identity,
                want_bytes,
                pinned_bytes,
                inline_where_faster: args.inline_where_faster,
            }))
        }
        Err(error) => {
            tracing::warn!("NIXL is not available, so pixels go inline over HTTP: {error}");
            Ok(None)
        }
    }
}

/// SIGTERM and SIGINT, caught from the moment this is made.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    fn new() -> std::io::Result<Self> {
        Ok(EndSignals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
