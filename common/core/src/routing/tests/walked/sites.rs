//! Sites with some of all that a view can say of one.

use super::super::grid::{MODEL, Site};
use super::PROMPT;
use crate::id::{ModelId, ModelName};
use crate::view::SiteView;

/// Something that can be said of a site.
type Trait = fn(Site, u32) -> Site;

/// A site with some of all that can be said of one.
pub(super) fn site(name: &str, (numbers, traits): ([u32; 4], u32)) -> SiteView {
    let [rtt_ms, depth, queued, other] = numbers;
    let has = |bit: u32| traits >> bit & 1 == 1;
    // Of what excludes a site a fourth as much, so that some are left.
    let seldom = |bit: u32| has(bit) && has(bit + 1);
    let options: [(bool, Trait); 16] = [
        (has(0), |site, n| site.warm_on_disk(n * 2)),
        (has(1), |site, _| site.stale(30)),
        (has(2), |site, _| site.evicting_at(90)),
        (seldom(2), |site, n| site.warm_by_classes(n, &[])),
        (seldom(3), |site, _| site.eventless()),
        (has(5), |site, n| site.places(4).in_flight(n).serving(700.0)),
        (has(6), |site, n| site.foreign_waiting(n)),
        (seldom(6), |site, _| site.without_queue()),
        (seldom(8), |site, _| site.silent()),
        (has(9), |site, n| {
            site.arrivals(3.0).reported(u64::from(n) * 400)
        }),
        (has(10), |site, _| site.relays(3).unserved(1)),
        (has(11), |site, _| site.echo(2)),
        (seldom(12), |site, _| site.context(PROMPT)),
        (seldom(13), |site, _| site.draining()),
        (seldom(14), |site, _| site.not_ready()),
        (seldom(15), |site, _| site.without_card()),
    ];
    let mut built = Site::new(name, rtt_ms.into())
        .warm(depth)
        .queued(queued.into());
    for (_, option) in options.into_iter().filter(|(chosen, _)| *chosen) {
        built = option(built, other);
    }
    built = if seldom(17) { built.dead() } else { built };
    built = if seldom(18) {
        built.serves("other")
    } else {
        built
    };
    let region = if has(20) { "eu" } else { "us" };
    let mut view = built.region(region).build();
    view.relays[0].path_rate = has(21).then_some(1e6);
    view.relays[0].window = has(22).then_some(100_000);
    if has(23) {
        // Clients ask for it by another name there.
        let name = ModelName::new("of another name").unwrap();
        view = renamed(view, &name);
    }
    view
}

fn renamed(mut view: SiteView, name: &ModelName) -> SiteView {
    let asked = ModelName::new(MODEL).unwrap();
    let rename = |id: &mut ModelId| {
        if *id == asked.id() {
            *id = name.id();
        }
    };
    for model in view.models.iter_mut().filter(|it| it.id == asked.id()) {
        model.aliases.push(asked.clone());
        (model.name, model.id) = (name.clone(), name.id());
    }
    view.pools
        .iter_mut()
        .for_each(|pool| rename(&mut pool.model));
    view.load
        .models
        .iter_mut()
        .for_each(|load| rename(&mut load.model));
    let serves = view.relays.iter_mut().flat_map(|relay| &mut relay.serves);
    serves.for_each(rename);
    view
}
