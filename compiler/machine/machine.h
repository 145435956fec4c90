// Machines that plans are made for: what a device computes, remembers and sends per second.
//
// A description in a file (--machine FILE) is one JSON object; numbers may have units (units.h):
//
//   {"name": "our A100s",
//    "flops": {"fp32": "19.5TFLOP/s", "bf16": "312TFLOP/s", "fp16": "312TFLOP/s"},
//    "reaches": {"product": 0.7, "attention": 0.5, "memory": 0.85},
//    "operator": "5us", "message": "10us", "post": "1us", "contention": 0.1,
//    "memory": "80GiB", "reserved": "2GiB", "memory_bandwidth": "2.039TB/s",
//    "node": 8, "inside": {"bandwidth": "300GB/s", "latency": "5us"},
//               "between": {"bandwidth": "25GB/s", "latency": "15us"},
//    "cards": 8, "card": "25GB/s", "pair": "300GB/s",
//    "products": {"8192x4096x4096": "230TFLOP/s"}}
//
// All but "flops" may be left out: what is left out takes no time and has no limit; without "cards"
// each device has one, of between's bandwidth; "pair" is of the link from one device of a node to
// one other, where each pair has its own (default: inside's). "products" are measured: m x n x k,
// of an [m, k] by a [k, n] matrix, in the 16-bit types; others follow from "reaches".
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <span>
#include <string>

#include "schema/base/status.h"
#include "schema/model/dtype.h"

namespace pp {

// Of one device, in one direction. Bandwidth 0: no limit.
struct Link {
  double bandwidth = 0;  // bytes per second
  double latency = 0;    // seconds
};

// Of an [m, k] by a [k, n] matrix; m >= n, as both ways take as long.
struct ProductShape {
  int64_t m = 0, n = 0, k = 0;
  auto operator<=>(const ProductShape&) const = default;
};

struct Machine {
  std::string name;
  std::array<double, std::size(kDtypes)>
      flops{};  // peak operations per second, by dtype; 0: it has none
  // Shares of the peaks that kernels reach: of operations by large products and by attention, and
  // of the memory's bandwidth.
  double product = 1, attention = 1, memory_share = 1;
  // Seconds that an operator takes beside its work, so that a small product reaches a smaller
  // share: of n operations n / (n + h) of `product`, h = launch * flops * product (1.1e9 on an
  // A100).
  double launch = 0;
  std::map<ProductShape, double> products;  // measured: operations per second, launch included
  double message = 0;     // seconds that a message occupies its channel beside its bytes
  double post = 0;        // and that starting it takes from the kernels
  double contention = 0;  // what kernels lose to a reduction beside them (semantics/cost_model.h)
  double memory = 0;      // bytes of a device; 0: not known
  double reserved = 0;    // of them, which no plan can use: driver, context, NCCL, kernels' images
  double memory_bandwidth = 0;
  int node = 0;          // devices that `inside` connects; 0: all
  Link inside, between;  // of one device; `between`: alone, to another node
  double pair = 0;       // bytes per second from one device of a node to one other; 0: as inside's
  int cards = 0;         // network cards of a node, which its devices share; 0: each has its own
  double card = 0;       // bytes per second of a card; 0: as between.bandwidth

  // Of its memory, what a plan may use.
  double Usable() const { return std::max(0.0, memory - reserved); }
};

// Those that have a name.
std::span<const Machine> Machines();
// A description. Error: what is wrong, and where, without the file's name.
Result<Machine> ParseMachine(const std::string& json);
// By name, or from a file. Error: neither; the file's what and where.
Result<Machine> FindMachine(const std::string& name_or_file);
// "312e12" or "312TFLOP/s": one that only computes, whatever the dtype.
Result<Machine> MachineOf(const std::string& flops);
// The description, as a file has it.
std::string ToJson(const Machine& machine);

}  // namespace pp
