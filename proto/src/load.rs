//! A site's load on the wire. Times travel as ages, since no two nodes share a clock.

use core::num::NonZeroU32;

use kvgrid_core::load::{EngineLoad, Extent, GatewayLoad, LoadSample};
use kvgrid_core::{Instant, ModelId};

use crate::convert::{ConvertError, age, before};
use crate::v1;

/// A sample, as the relay writes it at `now`.
pub fn load_to_wire(sample: &LoadSample, now: Instant) -> v1::Load {
    v1::Load {
        engines: sample
            .engines
            .iter()
            .map(|part| engine_to_wire(part, now))
            .collect(),
        gateway: sample.gateway.iter().map(gateway_to_wire).collect(),
        echo: sample.echo,
        age_micros: age(sample.at, now),
    }
}

/// A sample, as the edge reads it at `now`: no older than it says, plus the way here.
pub fn load_from_wire(wire: &v1::Load, now: Instant) -> Result<LoadSample, ConvertError> {
    let engines = wire.engines.iter().map(|part| engine_from_wire(part, now));
    Ok(LoadSample {
        at: before(now, wire.age_micros),
        engines: engines.collect::<Result<_, _>>()?,
        gateway: wire
            .gateway
            .iter()
            .map(gateway_from_wire)
            .collect::<Result<_, _>>()?,
        echo: wire.echo,
    })
}

fn engine_to_wire(part: &EngineLoad, now: Instant) -> v1::EngineLoad {
    v1::EngineLoad {
        worker: part.worker,
        rank: part.rank,
        age_micros: age(part.at, now),
        running: part.running,
        waiting: part.waiting,
        waiting_tokens: part.waiting_tokens,
        kv_use: part.kv_use,
        model_id: part.model.0,
        kv_cached: part.kv_cached,
        kv_tokens: part.kv_tokens,
        max_requests: part.max_requests,
        whole_site: part.extent != Extent::Rank,
        ranks: match part.extent {
            Extent::Rank => None,
            Extent::Site { ranks } => ranks.map(NonZeroU32::get),
        },
    }
}

fn engine_from_wire(wire: &v1::EngineLoad, now: Instant) -> Result<EngineLoad, ConvertError> {
    let no_share = |share: Option<f32>| share.is_some_and(|it| !(0.0..=1.0).contains(&it));
    let shares = [
        ("load.engine.kv_use", wire.kv_use),
        ("load.engine.kv_cached", wire.kv_cached),
    ];
    if let Some((field, _)) = shares.into_iter().find(|(_, share)| no_share(*share)) {
        return Err(ConvertError::invalid(field, "not between 0 and 1"));
    }
    let counts = [
        ("load.engine.kv_tokens", wire.kv_tokens),
        ("load.engine.max_requests", wire.max_requests.map(u64::from)),
        ("load.engine.ranks", wire.ranks.map(u64::from)),
    ];
    if let Some((field, _)) = counts.into_iter().find(|(_, count)| *count == Some(0)) {
        return Err(ConvertError::invalid(field, "not at least one"));
    }
    Ok(EngineLoad {
        model: ModelId(wire.model_id),
        worker: wire.worker,
        rank: wire.rank,
        extent: match wire.whole_site {
            false => Extent::Rank,
            true => Extent::Site {
                ranks: wire.ranks.and_then(NonZeroU32::new),
            },
        },
        at: before(now, wire.age_micros),
        running: wire.running,
        waiting: wire.waiting,
        waiting_tokens: wire.waiting_tokens,
        max_requests: wire.max_requests,
        kv_use: wire.kv_use,
        kv_cached: wire.kv_cached,
        kv_tokens: wire.kv_tokens,
    })
}

fn gateway_to_wire((model, load): &(ModelId, GatewayLoad)) -> v1::ModelGateway {
    v1::ModelGateway {
        model_id: model.0,
        in_flight: load.in_flight,
        queued_tokens: load.queued_tokens,
        arrivals_per_second: load.arrivals_per_s,
        prefill_micros_per_token: load.prefill_ms_per_token.map(|ms| ms * 1000.0),
        queued_prompt_tokens: Some(load.queued_prompt_tokens),
        serving_millis: load.serving_ms,
    }
}

fn gateway_from_wire(wire: &v1::ModelGateway) -> Result<(ModelId, GatewayLoad), ConvertError> {
    let sound = |value: f32| value.is_finite() && value >= 0.0;
    if !sound(wire.arrivals_per_second) {
        return Err(ConvertError::invalid(
            "load.gateway.arrivals_per_second",
            "no rate",
        ));
    }
    let times = [
        (
            "load.gateway.prefill_micros_per_token",
            wire.prefill_micros_per_token,
        ),
        ("load.gateway.serving_millis", wire.serving_millis),
    ];
    let no_time = |time: Option<f32>| time.is_some_and(|time| !sound(time));
    if let Some((field, _)) = times.into_iter().find(|(_, time)| no_time(*time)) {
        return Err(ConvertError::invalid(field, "no time"));
    }
    let load = GatewayLoad {
        in_flight: wire.in_flight,
        queued_tokens: wire.queued_tokens,
        // At least what is to be computed of them was in their prompts.
        queued_prompt_tokens: wire.queued_prompt_tokens.unwrap_or(wire.queued_tokens),
        arrivals_per_s: wire.arrivals_per_second,
        prefill_ms_per_token: wire.prefill_micros_per_token.map(|micros| micros / 1000.0),
        serving_ms: wire.serving_millis,
    };
    Ok((ModelId(wire.model_id), load))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> LoadSample {
        LoadSample {
            at: Instant::from_micros(900),
            engines: vec![EngineLoad {
                model: ModelId(1),
                worker: 2,
                rank: 3,
                extent: Extent::Rank,
                at: Instant::from_micros(800),
                running: 4,
                waiting: Some(5),
                waiting_tokens: Some(6),
                max_requests: Some(16),
                kv_use: Some(0.5),
                kv_cached: Some(0.25),
                kv_tokens: Some(4096),
            }],
            gateway: vec![(
                ModelId(1),
                GatewayLoad {
                    in_flight: 7,
                    queued_tokens: 8,
                    queued_prompt_tokens: 80,
                    arrivals_per_s: 9.5,
                    prefill_ms_per_token: Some(0.25),
                    serving_ms: Some(750.0),
                },
            )],
            echo: 10,
        }
    }

    #[test]
    fn a_sample_arrives_as_old_as_it_left() {
        let wire = load_to_wire(&sample(), Instant::from_micros(1000));

        let read = load_from_wire(&wire, Instant::from_micros(1000)).unwrap();
        assert_eq!(read, sample());

        let elsewhere = load_from_wire(&wire, Instant::from_micros(5100)).unwrap();
        assert_eq!(elsewhere.at, Instant::from_micros(5000));
        assert_eq!(elsewhere.engines[0].at, Instant::from_micros(4900));
    }

    #[test]
    fn what_is_unknown_arrives_as_unknown() {
        let mut sample = sample();
        let part = &mut sample.engines[0];
        (part.waiting, part.waiting_tokens, part.kv_tokens) = (None, None, None);
        (part.kv_use, part.kv_cached, part.max_requests) = (None, None, None);
        part.extent = Extent::Site { ranks: None };
        let now = Instant::from_micros(1000);

        let bytes = prost::Message::encode_to_vec(&load_to_wire(&sample, now));
        let wire: v1::Load = prost::Message::decode(bytes.as_slice()).unwrap();

        assert_eq!(load_from_wire(&wire, now).unwrap(), sample);
    }

    #[test]
    fn what_a_relay_of_before_does_not_tell_is_taken_for_what_it_must_be() {
        let mut wire = load_to_wire(&sample(), Instant::from_micros(1000));
        wire.gateway[0].queued_prompt_tokens = None;
        wire.gateway[0].serving_millis = None;

        let read = load_from_wire(&wire, Instant::from_micros(1000)).unwrap();

        assert_eq!(read.gateway[0].1.queued_prompt_tokens, 8);
        assert_eq!(read.gateway[0].1.serving_ms, None);
    }

    #[test]
    fn a_frontends_part_arrives_as_one() {
        let mut sample = sample();
        let ranks = NonZeroU32::new(4);
        sample.engines[0].extent = Extent::Site { ranks };
        let now = Instant::from_micros(1000);

        let read = load_from_wire(&load_to_wire(&sample, now), now).unwrap();

        assert_eq!(read, sample);
    }

    #[test]
    fn figures_that_no_load_has_are_refused_by_name() {
        let refused = |change: fn(&mut v1::Load)| {
            let mut wire = load_to_wire(&sample(), Instant::ZERO);
            change(&mut wire);
            load_from_wire(&wire, Instant::ZERO)
                .unwrap_err()
                .to_string()
        };

        assert!(
            refused(|load| load.engines[0].kv_use = Some(f32::NAN))
                .starts_with("load.engine.kv_use")
        );
        assert!(
            refused(|load| load.engines[0].kv_cached = Some(1.5))
                .starts_with("load.engine.kv_cached")
        );
        assert!(
            refused(|load| load.engines[0].kv_tokens = Some(0))
                .starts_with("load.engine.kv_tokens")
        );
        assert!(
            refused(|load| load.engines[0].max_requests = Some(0))
                .starts_with("load.engine.max_requests")
        );
        assert!(refused(|load| load.engines[0].ranks = Some(0)).starts_with("load.engine.ranks"));
        assert!(
            refused(|load| load.gateway[0].serving_millis = Some(-1.0))
                .starts_with("load.gateway.serving_millis")
        );
        assert!(
            refused(|load| load.gateway[0].arrivals_per_second = -1.0)
                .starts_with("load.gateway.arrivals_per_second")
        );
        assert!(
            refused(|load| load.gateway[0].prefill_micros_per_token = Some(f32::INFINITY))
                .starts_with("load.gateway.prefill_micros_per_token")
        );
    }
}
