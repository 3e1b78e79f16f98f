//! `mediagate serve`: puts the parts together, runs them, and takes them down in order.

use std::{
    error::Error,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::{
    config::{self, Cli, ServeArgs},
    media::{fetch::Fetcher, loader::MediaLoader},
    memory::{Arena, Budget, limits},
    model::Models,
    observe,
    routing::watch,
    server::{
        App,
        admission::Places,
        app::{self, About},
        body::Bodies,
        listen::{self, Patience, Settings},
        models,
        recent::RecentErrors,
        reload::{Fresh, Reloading},
        responses::Responses,
        routes,
        scan::Scans,
        tenant::Tenancy,
        tls::Tls,
        watch_files::{self, Looks},
    },
    transfer::{Landings, NixlAgent, library::NixlLibrary},
    worker::{
        Registry, WorkerClient,
        attach::Identity,
        attachment::Transfers,
        monitor::{self, MonitorSettings},
        probe::Probe,
    },
};
#[cfg(feature = "mm-routing")]
use crate::{media::dimensions::Dimensions, prompt::PromptModel};

/// Pushes to one worker may pin this part of the arena at a time: what one that hangs can take from the others.
const PINNED_SHARE: u64 = 8;

/// For monitors to give grants back.
const DETACH_GRACE: Duration = Duration::from_secs(2);

pub async fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    args.validate()?;
    observe::tracing::start(&args.log, args.log_format)?;
    for name in config::unknown_variables() {
        tracing::warn!(name, "this variable is no setting: look for a slip in its name");
    }
    let metrics = observe::install()?;
    tokio::spawn(observe::upkeep(metrics.clone(), observe::UPKEEP_INTERVAL));
    limits::raise_descriptors();
    // Before anybody could learn that the gateway runs and send one.
    let mut signals = Signals::new()?;
    // Looked at before they are read, so that no change is missed.
    let files: Arc<[PathBuf]> = config::read_on_reload(&args).into();
    let looks = Looks::at(&files);
    let Fresh { workers, keys, worker_authorization, tls } = config::fresh(&args)?;
    let registry = Registry::new(&workers, args.fleet.settings())?;
    let client = WorkerClient::new(args.fleet.worker_ca_file.as_deref())?;
    if args.access.tenancy == Tenancy::ApiKey && !keys.required() {
        tracing::warn!("--tenancy api-key without --api-key-file: a client can be whatever tenant it says");
    }
    // Off the async threads: tokenizers are megabytes.
    let paths = args.routing.model_paths.clone();
    let models = tokio::task::spawn_blocking(move || Models::read(&paths)).await??;
    for (name, model) in models.all() {
        tracing::info!(name, model_type = model.model_type(), dir = %model.dir.display(), "model files are read");
    }

    let mut loader = None;
    let mut transfers = None;
    if args.images.frontend_decoding {
        let layout = args.arena_layout().with_reserve(Probe::ARENA_BYTES);
        // Faulting gigabytes in takes a while.
        let arena = tokio::task::spawn_blocking(move || Arena::with_layout(layout)).await??;
        loader = Some(MediaLoader::new(args.media.config(), arena.clone())?);
        transfers = set_up_transfers(&args, arena).await?;
    }
    let fetcher = Arc::new(Fetcher::new(&args.media.config().fetch)?);
    #[cfg(feature = "mm-routing")]
    let prompts = {
        let models = models.clone();
        tokio::task::spawn_blocking(move || models.map(|name, files| PromptModel::new(name, files))).await?
    };
    #[cfg(feature = "mm-routing")]
    let dimensions = (!args.images.frontend_decoding && !models.is_empty())
        .then(|| Dimensions::new(fetcher.clone(), Duration::from_millis(args.routing.image_size_timeout_ms)));

    // Before anything is announced: a port that is taken ends the start.
    let public = listen::bind(args.listening.listen).await?;
    let admin = listen::bind(args.listening.admin_listen).await?;
    let stop = CancellationToken::new();
    let interval = Duration::from_millis(args.fleet.health_interval_ms);
    let landings = transfers.as_ref().map(|transfers| transfers.landings.clone()).unwrap_or_default();
    let settings = MonitorSettings { client: client.clone(), transfers, interval };
    let monitors = tokio::spawn(monitor::watch(registry.changes(), settings, stop.clone()));

    let router = watch::start(&args.routing.settings(), &registry, &client, &stop);

    let app = App::new(app::Inner {
        registry,
        router,
        client,
        loader,
        landings,
        url_names: args.images.url_names(),
        fetcher,
        pass_other_media: args.images.pass_other_media,
        keys,
        tenancy: args.access.tenancy.clone(),
        worker_authorization: ArcSwapOption::new(worker_authorization.map(Arc::new)),
        places: Places::new(args.requests.max_requests),
        bodies: Bodies::new(args.requests.body_budget_bytes(), args.limits().body_bytes),
        worker_bodies: Budget::new(args.requests.worker_body_budget_bytes()),
        other_media: Budget::new(args.other_media_bytes()),
        scans: Scans::default(),
        limits: args.limits(),
        resize: args.images.resize,
        models,
        #[cfg(feature = "mm-routing")]
        prompts,
        #[cfg(feature = "mm-routing")]
        dimensions,
        asked_for_models: models::Asked::default(),
        responses: Responses::default(),
        leaving: CancellationToken::new(),
        metrics,
        recent: RecentErrors::default(),
        tls: tls.map(|config| Arc::new(Tls::new(config))),
        reloading: Reloading { read: Box::new(read_again), workers: Mutex::new(workers) },
        about: About {
            started: SystemTime::now(),
            frontend_decoding: args.images.frontend_decoding,
            memory_bytes: args.budgets().sum(),
        },
    });
    tokio::spawn(models::watch(app.clone(), stop.clone()));
    if let Some(period) = args.watch_files_ms {
        tokio::spawn(watch_files::watch(app.clone(), files, looks, Duration::from_millis(period)));
    }
    tracing::info!(
        listen = %public.local_addr()?,
        admin = %admin.local_addr()?,
        workers = app.registry.all().len(),
        frontend_decoding = args.images.frontend_decoding,
        memory_bytes = args.budgets().sum(),
        "serving"
    );
    // Workers stay attached until the last request is through.
    let (stop_public, stop_admin) = (CancellationToken::new(), CancellationToken::new());
    let settings = args.listening.settings();
    let router = routes::public(app.clone(), &args.access.extra_routes, args.listening.admin_on_public);
    let public = tokio::spawn(listen::serve(public, app.tls.clone(), router, stop_public.clone(), settings));
    let operators = Settings { patience: Patience { grace: DETACH_GRACE, ..settings.patience }, ..settings };
    let router = routes::admin(app.clone(), args.listening.admin_listen.ip().is_loopback());
    let admin = tokio::spawn(listen::serve(admin, None, router, stop_admin.clone(), operators));
    while signals.next().await == Asked::Reload {
        // Said in the log, whatever comes of it.
        let _ = app.reload().await;
    }
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
    let secret = config::attach_secret(args)?;
    let identity = Identity::new(secret.as_deref().map(str::as_bytes));
    let landings = Arc::new(Landings::default());
    let probe = Probe::new(&arena).ok_or("the arena has no room for a probe")?;
    let (dir, name) = (args.transfer.nixl_lib_dir.clone(), format!("mediagate-gateway-{}", identity.incarnation));
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
            let want_bytes = args.transfer.landing_bytes.as_u64();
            let pinned_bytes = arena.bytes() as u64 / PINNED_SHARE;
            Ok(Some(Transfers {
                agent,
                landings,
                probe,
                identity,
                want_bytes,
                pinned_bytes,
                inline_where_faster: args.transfer.inline_where_faster,
            }))
        }
        Err(error) => {
            tracing::warn!("NIXL is not available, so pixels go inline over HTTP: {error}");
            Ok(None)
        }
    }
}

/// The configuration as it is now, from the same command line.
fn read_again() -> Result<Fresh, String> {
    let args = Cli::read(std::env::args_os()).map_err(|error| error.to_string())?.serve;
    args.validate().and_then(|()| config::fresh(&args)).map_err(|error| error.to_string())
}

/// What a signal asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    End,
    Reload,
}

/// SIGTERM, SIGINT and SIGHUP, caught from the moment this is made.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::End,
            _ = self.interrupt.recv() => Asked::End,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
}
