//! May this address be reached? One pure function, [`judge`], over an address and nothing else.
//!
//! The rule is an allow-list. IPv4 is allowed where the IANA special-purpose registry (RFC 6890) says nothing against it;
//! IPv6 is allowed inside 2000::/3, the only space handed out for global unicast, less the special blocks in it. An IPv6
//! address that carries an IPv4 address is judged by what it carries: a translator or tunnel on the way would deliver it
//! there. What carries a public IPv4 address is still refused, except where that is how the public internet is reached:
//! mapped addresses (the kernel dials IPv4) and NAT64's well-known prefix (what DNS64 answers on IPv6-only networks).
//!
//! Metadata services of clouds have a verdict of their own, since they hand out credentials to whoever connects. One of
//! them, Azure's, is an ordinary public address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Why an address may not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A cloud's metadata, credential or host service.
    Metadata,
    /// This host.
    Loopback,
    /// "This network" or no address at all.
    Unspecified,
    /// A private network: RFC 1918, unique local, site-local.
    Private,
    /// Shared by a carrier and its customers (RFC 6598); many clusters use it inside.
    Shared,
    /// Valid on one link only.
    LinkLocal,
    /// One-to-many addresses, broadcast included.
    Multicast,
    /// Set aside for protocols, translation, documentation, benchmarks, or the future.
    Reserved,
    /// An obsolete or local way of carrying IPv4 in IPv6.
    Transition,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Metadata => "a cloud metadata address",
            Self::Loopback => "a loopback address",
            Self::Unspecified => "an unspecified address",
            Self::Private => "a private address",
            Self::Shared => "a shared carrier address",
            Self::LinkLocal => "a link-local address",
            Self::Multicast => "a multicast or broadcast address",
            Self::Reserved => "a reserved address",
            Self::Transition => "an IPv6 transition address",
        })
    }
}

/// Whether the public internet may be reached at this address.
///
/// # Errors
///
/// Why not.
pub fn judge(ip: IpAddr) -> Result<(), Refusal> {
    match ip {
        IpAddr::V4(ip) => judge_v4(ip),
        IpAddr::V6(ip) => judge_v6(ip),
    }
}

/// 169.254.169.254 (most clouds), AWS ECS and EKS, Alibaba, Oracle, Azure's wire server, Tencent.
const METADATA_V4: &[Ipv4Addr] = &[
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(169, 254, 170, 23),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(168, 63, 129, 16),
    Ipv4Addr::new(169, 254, 0, 23),
];

/// AWS (IMDS, EKS), Google, Oracle (fd00:c1::), OpenStack.
const METADATA_V6: &[Ipv6Addr] = &[
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23),
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
];

/// The IANA IPv4 special-purpose registry, less the rows that are globally reachable in themselves (the AS 112 and AMT
/// anycast blocks), and with the deprecated 6to4 relays.
const SPECIAL_V4: &[(Ipv4Addr, u32, Refusal)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, Refusal::Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Refusal::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Refusal::Shared),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Refusal::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Refusal::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Refusal::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Refusal::Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Refusal::Reserved),
    (Ipv4Addr::new(192, 88, 99, 0), 24, Refusal::Transition),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Refusal::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Refusal::Reserved),
    (Ipv4Addr::new(198, 51, 100, 0), 24, Refusal::Reserved),
    (Ipv4Addr::new(203, 0, 113, 0), 24, Refusal::Reserved),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Refusal::Multicast),
    (Ipv4Addr::new(255, 255, 255, 255), 32, Refusal::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Refusal::Reserved),
];

/// Special blocks of IPv6, first match first. Those outside 2000::/3 are here for their names only: whatever is outside
/// and not named is refused as well.
const SPECIAL_V6: &[(Ipv6Addr, u32, Refusal)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, Refusal::Unspecified),
    (Ipv6Addr::LOCALHOST, 128, Refusal::Loopback),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Refusal::Private),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Refusal::LinkLocal),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Refusal::Private),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Refusal::Multicast),
    // IETF protocol assignments: benchmarking, ORCHID, drone ids; Teredo is judged before.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, Refusal::Reserved),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, Refusal::Reserved),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, Refusal::Reserved),
];

/// What global unicast addresses are taken from (RFC 4291, IANA).
const GLOBAL_UNICAST: (Ipv6Addr, u32) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

fn judge_v4(ip: Ipv4Addr) -> Result<(), Refusal> {
    if METADATA_V4.contains(&ip) {
        return Err(Refusal::Metadata);
    }
    let special = SPECIAL_V4.iter().find(|(network, bits, _)| is_in_v4(ip, *network, *bits));
    special.map_or(Ok(()), |(_, _, refusal)| Err(*refusal))
}

fn judge_v6(ip: Ipv6Addr) -> Result<(), Refusal> {
    if METADATA_V6.contains(&ip) {
        return Err(Refusal::Metadata);
    }
    match carried(ip) {
        Carried::Nothing => {}
        Carried::ByTheInternet(v4) => return judge_v4(v4),
        Carried::ByATunnel(v4) => {
            v4.into_iter().flatten().try_for_each(judge_v4)?;
            return Err(Refusal::Transition);
        }
        Carried::InTheInterfaceId(v4) => judge_v4(v4)?,
    }
    if let Some((_, _, refusal)) = SPECIAL_V6.iter().find(|(network, bits, _)| is_in_v6(ip, *network, *bits)) {
        return Err(*refusal);
    }
    let (network, bits) = GLOBAL_UNICAST;
    if is_in_v6(ip, network, bits) { Ok(()) } else { Err(Refusal::Reserved) }
}

/// IPv4 addresses inside an IPv6 address, by what becomes of a packet sent there.
enum Carried {
    Nothing,
    /// The packet reaches that IPv4 address as any packet would.
    ByTheInternet(Ipv4Addr),
    /// Obsolete or local mechanisms; up to two addresses to judge (the reason that is told is the first's).
    ByATunnel([Option<Ipv4Addr>; 2]),
    /// ISATAP: the prefix decides on the way, the interface id names an IPv4 host at the end of it.
    InTheInterfaceId(Ipv4Addr),
}

fn carried(ip: Ipv6Addr) -> Carried {
    let bits = ip.to_bits();
    let v4_at = |shift: u32| Ipv4Addr::from_bits((bits >> shift) as u32);
    match ip.segments() {
        // ::ffff:0:0/96, mapped (RFC 4291).
        [0, 0, 0, 0, 0, 0xffff, _, _] => Carried::ByTheInternet(v4_at(0)),
        // 64:ff9b::/96, NAT64 (RFC 6052).
        [0x64, 0xff9b, 0, 0, 0, 0, _, _] => Carried::ByTheInternet(v4_at(0)),
        // 64:ff9b:1::/48, NAT64 of a local network (RFC 8215). The address may stand at four places (RFC 6052, 2.2), so it
        // is not looked for.
        [0x64, 0xff9b, 1, ..] => Carried::ByATunnel([None, None]),
        // ::/96, compatible (RFC 4291), but for :: and ::1.
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 || low > 1 => Carried::ByATunnel([Some(v4_at(0)), None]),
        // ::ffff:0:0:0/96, SIIT (RFC 2765).
        [0, 0, 0, 0, 0xffff, 0, _, _] => Carried::ByATunnel([Some(v4_at(0)), None]),
        // 2002::/16, 6to4 (RFC 3056).
        [0x2002, ..] => Carried::ByATunnel([Some(v4_at(80)), None]),
        // 2001::/32, Teredo (RFC 4380): the client, inverted, and its server.
        [0x2001, 0, ..] => Carried::ByATunnel([Some(Ipv4Addr::from_bits(!(bits as u32))), Some(v4_at(64))]),
        // Interface id [02]00:5efe:a.b.c.d, ISATAP (RFC 5214).
        [_, _, _, _, 0 | 0x200, 0x5efe, _, _] => Carried::InTheInterfaceId(v4_at(0)),
        _ => Carried::Nothing,
    }
}

fn is_in_v4(ip: Ipv4Addr, network: Ipv4Addr, bits: u32) -> bool {
    (ip.to_bits() ^ network.to_bits()).leading_zeros() >= bits
}

fn is_in_v6(ip: Ipv6Addr, network: Ipv6Addr, bits: u32) -> bool {
    (ip.to_bits() ^ network.to_bits()).leading_zeros() >= bits
}

#[cfg(test)]
mod tests {
    use super::Refusal::{
        LinkLocal, Loopback, Metadata, Multicast, Private, Reserved, Shared, Transition, Unspecified,
    };
    use super::*;

    fn verdict(ip: &str) -> Result<(), Refusal> {
        judge(ip.parse().unwrap_or_else(|_| panic!("{ip} is no address")))
    }

    /// Every range, by an address inside it and those at its borders.
    #[test]
    fn every_special_range_is_refused() {
        for (ips, refusal) in [
            (["0.0.0.0", "0.1.2.3", "0.255.255.255"], Unspecified),
            (["10.0.0.0", "10.0.0.5", "10.255.255.255"], Private),
            (["100.64.0.0", "100.64.0.1", "100.127.255.255"], Shared),
            (["127.0.0.0", "127.0.0.1", "127.255.255.255"], Loopback),
            (["169.254.0.0", "169.254.1.1", "169.254.255.255"], LinkLocal),
            (["172.16.0.0", "172.31.0.1", "172.31.255.255"], Private),
            (["192.0.0.0", "192.0.0.8", "192.0.0.255"], Reserved),
            (["192.0.2.0", "192.0.2.1", "192.0.2.255"], Reserved),
            (["192.88.99.0", "192.88.99.1", "192.88.99.255"], Transition),
            (["192.168.0.0", "192.168.1.1", "192.168.255.255"], Private),
            (["198.18.0.0", "198.18.0.1", "198.19.255.255"], Reserved),
            (["198.51.100.0", "198.51.100.1", "198.51.100.255"], Reserved),
            (["203.0.113.0", "203.0.113.1", "203.0.113.255"], Reserved),
            (["224.0.0.0", "239.1.1.1", "239.255.255.255"], Multicast),
            (["240.0.0.0", "240.0.0.1", "255.255.255.254"], Reserved),
            (["255.255.255.255"; 3], Multicast),
            (["::"; 3], Unspecified),
            (["::1"; 3], Loopback),
            (["fc00::", "fd00:ec2::1", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"], Private),
            (["fe80::", "fe80::1", "febf:ffff::1"], LinkLocal),
            (["fec0::", "fec0::1", "feff:ffff::1"], Private),
            (["ff00::", "ff02::1", "ff0e::1"], Multicast),
            // Outside of 2000::/3.
            (["100::", "100::1", "100::ffff:ffff:ffff:ffff"], Reserved),
            (["100:0:0:1::", "100:0:0:1::1", "1fff:ffff::1"], Reserved),
            (["4000::", "5f00::", "5f00::1"], Reserved),
            // Inside of it.
            (["2001:2::", "2001:2::1", "2001:2:0:ffff::1"], Reserved),
            (["2001:10::", "2001:10::1", "2001:1f:ffff::1"], Reserved),
            (["2001:20::", "2001:20::1", "2001:2f:ffff::1"], Reserved),
            (["2001:1::1", "2001:30::1", "2001:1ff:ffff::1"], Reserved),
            (["2001:db8::", "2001:db8::1", "2001:db8:ffff::1"], Reserved),
            (["3fff::", "3fff::1", "3fff:fff:ffff::1"], Reserved),
        ] {
            for ip in ips {
                assert_eq!(verdict(ip), Err(refusal), "{ip}");
            }
        }
    }

    #[test]
    fn the_neighbours_of_special_ranges_are_allowed() {
        for ip in [
            "1.0.0.0",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.254",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "172.15.0.1",
            "172.32.0.1",
            "192.0.1.1",
            "192.0.3.0",
            "192.31.196.1",
            "192.52.193.1",
            "192.88.98.255",
            "192.88.100.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.0.1",
            "198.20.0.0",
            "223.255.255.1",
            "2000::1",
            "2001:200::1",
            "2001:4860:4860::8888",
            "2001:db7:ffff::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700::1111",
            "2620:4f:8000::1",
            "3ffe:ffff::1",
            "3fff:1000::1",
        ] {
            assert_eq!(verdict(ip), Ok(()), "{ip}");
        }
    }

    #[test]
    fn metadata_services_are_known_by_number() {
        for ip in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "169.254.0.23",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fe80::a9fe:a9fe",
        ] {
            assert_eq!(verdict(ip), Err(Metadata), "{ip}");
        }
    }

    #[test]
    fn an_address_that_carries_ipv4_is_judged_by_what_it_carries() {
        for (ip, expected) in [
            // Mapped.
            ("::ffff:8.8.8.8", Ok(())),
            ("::ffff:127.0.0.1", Err(Loopback)),
            ("::ffff:a9fe:a9fe", Err(Metadata)),
            // NAT64, well-known prefix.
            ("64:ff9b::808:808", Ok(())),
            ("64:ff9b::7f00:1", Err(Loopback)),
            ("64:ff9b::a9fe:a9fe", Err(Metadata)),
            ("64:ff9b::a83f:8110", Err(Metadata)),
            ("64:ff9b:0:1::808:808", Err(Reserved)),
            // NAT64, local prefix, every layout.
            ("64:ff9b:1::a00:5", Err(Transition)),
            ("64:ff9b:1:a00:0:500::", Err(Transition)),
            ("64:ff9b:1::808:808", Err(Transition)),
            // Compatible.
            ("::127.0.0.1", Err(Loopback)),
            ("::a9fe:a9fe", Err(Metadata)),
            ("::2", Err(Unspecified)),
            ("::8.8.8.8", Err(Transition)),
            // SIIT.
            ("::ffff:0:7f00:1", Err(Loopback)),
            ("::ffff:0:808:808", Err(Transition)),
            // 6to4.
            ("2002:a00:5::1", Err(Private)),
            ("2002:a9fe:a9fe::1", Err(Metadata)),
            ("2002:808:808::1", Err(Transition)),
            // Teredo: client 127.0.0.1; server 127.0.0.1; both public.
            ("2001:0:1:2:3:4:80ff:fffe", Err(Loopback)),
            ("2001:0:7f00:1::f7f7:f7f7", Err(Loopback)),
            ("2001:0:808:808::f7f7:f7f7", Err(Transition)),
            // ISATAP: private and public end, both forms of the id, a bad prefix.
            ("2606:4700::5efe:7f00:1", Err(Loopback)),
            ("2606:4700::200:5efe:a9fe:a9fe", Err(Metadata)),
            ("2606:4700::5efe:808:808", Ok(())),
            ("2001:db8::5efe:808:808", Err(Reserved)),
        ] {
            assert_eq!(verdict(ip), expected, "{ip}");
        }
    }
}
