#include "compiler/machine/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "schema/base/json.h"
#include "schema/base/number.h"
#include "schema/base/split.h"
#include "schema/base/text_source.h"
#include "schema/base/units.h"

namespace pp {
namespace {

using Json = nlohmann::json;

constexpr double kT = 1e12, kG = 1e9, kGiB = int64_t{1} << 30, kUs = 1e-6;
constexpr int64_t kMostBytes = 1 << 20;
constexpr int kMostDevices = 1 << 20;
constexpr int64_t kMostSide = int64_t{1} << 40;
// Keeps sums of everything in a plan far below double's maximum, as with --costs.
constexpr double kMost = 1e24;

// GPUs: peaks (dense) and bandwidths of the vendors' data sheets. What they reach was measured by
// others, unless it says otherwise (compiler/MEASURED.md has the places):
//   products   60 to 80 % of the peak, a B200 half of it (power); FlashAttention-2 about 200 of an
//              A100's 312 TFLOP/s and 350 of an H100's 989 (Dao, 2023, section 4). An H200's shares
//              are fitted to training steps of two models on one (kernels/README.md); those of four
//              others are then 2.3 % off on average.
//   inside     the bus bandwidth of NCCL's rings over a node's devices: 232 of 300 GB/s (A100), 350
//              to 365 of 450 (H100), 606 (B200), 700 (72 of GB200); of RCCL's 313 (MI300X, whose
//              pairs have a link of 48)
//   between    a port of 200 (HDR, 24 GB/s) or 400 Gbit/s (NDR, 46 to 48) for each GPU; all eight
//              of a node 350 to 386
//   latency    of a step of a ring: 3.4 us inside, 14 between (NCCL's own model, tuning.cc)
//   reserved   what CUDA does not report of the nominal memory, a context with kernels (0.6 GiB), a
//              first communicator (1.5) and two more (0.65 each)
//
// "cpu" is one core with AVX-512 for each rank, and none for what runs beside it. With ten
// microseconds an operator a profile of micro-batches of two sequences predicts those of one, four
// and eight best (GPT-2 and LLaMA, 96 to 256 wide: 4.9 % off, 8.4 % with one microsecond). A
// collective reads, adds and writes what is in no cache; two that meet wake each other, which takes
// 24 to 120 us in a virtual machine.
// clang-format off
struct Gpu {
  const char* name;
  double fp32, half;                   // TFLOP/s
  double product, attention, memory;   // shares of the peaks
  double gib, reserved, bandwidth;     // of its memory, in GiB and GB/s
  int node;
  double inside, step, between, pair;  // GB/s, but for a step's microseconds
};
constexpr Gpu kGpus[] = {
    //           fp32  16 bits product attn memory GiB   reserved GB/s node inside step between pair
    {"a100-40g", 19.5,     312,   0.7,     0.6,  0.85,  40,       3.9,  1555,   8,   232,   5,     24,   0},
    {"a100-80g", 19.5,     312,   0.7,     0.6,  0.85,  80,       4.3,  2039,   8,   232,   5,     24,   0},
    {"h100-sxm",   67,     989,  0.65,    0.35,  0.85,  80,       4.3,  3350,   8,   360,   5,     48,   0},
    {"h200",       67,     989,   0.7,    0.25,  0.72,   140,     3.6,  4800,   8,   360,   5,     48,   0},
    {"b200",       80,    2250,  0.49,    0.38,  0.67,    179,     4,  8000,   8,   606,   8,     48,   0},
    // Products and attention as a B200's, by the best products of both.
    {"gb200",      80,    2500,  0.46,    0.36,  0.67,    185,   4.1,  8000,  72,   700,   8,     48,   0},
    // Nobody measured its attention here.
    {"mi300x",  163.4,    1307,  0.45,    0.25,   0.8, 192,       3.6,  5300,   8,   313,   5,     40,  48},
};
// clang-format on

Machine MachineOf(const Gpu& gpu) {
  return {.name = gpu.name,
          .flops = {gpu.fp32 * kT, gpu.half * kT, gpu.half * kT},
          .product = gpu.product,
          .attention = gpu.attention,
          .memory_share = gpu.memory,
          .launch = 5 * kUs,
          .message = 10 * kUs,
          .memory = gpu.gib * kGiB,
          .reserved = gpu.reserved * kGiB,
          .memory_bandwidth = gpu.bandwidth * kG,
          .node = gpu.node,
          .inside = {gpu.inside * kG, gpu.step * kUs},
          .between = {gpu.between * kG, 15 * kUs},
          .pair = gpu.pair * kG,
          .cards = gpu.node};
}

const Machine kCpu{.name = "cpu",
                   .flops = {70 * kG, 70 * kG, 70 * kG},
                   .attention = 0.5,
                   .launch = 10 * kUs,
                   .post = 10 * kUs,
                   .contention = 1,
                   .memory_bandwidth = 8 * kG,
                   .inside = {2 * kG, 30 * kUs},
                   .between = {2 * kG, 30 * kUs}};

// Calls visit(key, dimension, value) for each number of a description; keys as in a JSON pointer.
template <typename M, typename Visit>
void VisitNumbers(M& machine, Visit visit) {
  for (size_t i = 0; i < std::size(kDtypes); ++i)
    visit(fmt::format("/flops/{}", kDtypeNames[i]), Dimension::kFlops, &machine.flops[i]);
  visit("/reaches/product", Dimension::kNone, &machine.product);
  visit("/reaches/attention", Dimension::kNone, &machine.attention);
  visit("/reaches/memory", Dimension::kNone, &machine.memory_share);
  visit("/operator", Dimension::kTime, &machine.launch);
  visit("/message", Dimension::kTime, &machine.message);
  visit("/post", Dimension::kTime, &machine.post);
  visit("/contention", Dimension::kNone, &machine.contention);
  visit("/memory", Dimension::kBytes, &machine.memory);
  visit("/reserved", Dimension::kBytes, &machine.reserved);
  visit("/memory_bandwidth", Dimension::kBandwidth, &machine.memory_bandwidth);
  visit("/inside/bandwidth", Dimension::kBandwidth, &machine.inside.bandwidth);
  visit("/inside/latency", Dimension::kTime, &machine.inside.latency);
  visit("/between/bandwidth", Dimension::kBandwidth, &machine.between.bandwidth);
  visit("/between/latency", Dimension::kTime, &machine.between.latency);
  visit("/pair", Dimension::kBandwidth, &machine.pair);
  visit("/card", Dimension::kBandwidth, &machine.card);
}

constexpr std::string_view kUnits[] = {"", "s", "B", "B/s", "FLOP/s"};  // by Dimension

// "inside.bandwidth".
std::string Dotted(std::string key) {
  key.erase(0, 1);
  std::replace(key.begin(), key.end(), '/', '.');
  return key;
}

std::string Short(const Json& value) {
  return std::string(Shown(value.dump(-1, ' ', true, Json::error_handler_t::replace)));
}

// Only shares that are 0 where they are left out may be 0.
Status ReadValue(const std::string& key, const Json& value, Dimension dimension, double* number) {
  std::optional<Quantity> read;
  if (value.is_number()) read = Quantity{value.get<double>(), Dimension::kNone};
  if (value.is_string()) read = ReadQuantity(value.get_ref<const std::string&>());
  const bool share = dimension == Dimension::kNone;
  if (!read || (read->dimension != Dimension::kNone && read->dimension != dimension) ||
      !(read->value >= 0) || read->value > (share ? 1 : kMost) ||
      (share && read->value == 0 && *number > 0))
    return Status::Invalid(fmt::format(
        "{} is {} ({})", Dotted(key), Short(value),
        share ? fmt::format("a share {}, at most 1", *number > 0 ? "above 0" : "from 0 on")
              : fmt::format("a number from 0 on, in {}", kUnits[static_cast<int>(dimension)])));
  *number = read->value;
  return {};
}

// {"8192x4096x4096": "600TFLOP/s"}.
Status ReadProducts(const Json& products, Machine* machine) {
  if (products.is_null()) return {};
  const auto wrong = [](const std::string& what) {
    return Status::Invalid(
        fmt::format("products{} ({{\"8192x4096x4096\": \"600TFLOP/s\", ...}})", what));
  };
  if (!products.is_object()) return wrong(fmt::format(" is {}", Short(products)));
  for (const auto& [key, value] : products.items()) {
    const auto words = Split(key, 'x');
    ProductShape shape;
    std::vector<int64_t*> sizes = {&shape.m, &shape.n, &shape.k};
    bool right = words.size() == sizes.size();
    for (size_t i = 0; right && i < sizes.size(); ++i)
      right = ReadNumber(words[i], sizes[i]) && *sizes[i] > 0 && *sizes[i] < kMostSide;
    double flops = 0;
    if (!right) return wrong(fmt::format(" has '{}'", Shown(key)));
    const Status read =
        ReadValue(fmt::format("/products/{}", key), value, Dimension::kFlops, &flops);
    PP_RETURN_IF_ERROR(read);
    if (flops == 0) return wrong(fmt::format(".{} is 0", Shown(key)));
    if (shape.m < shape.n) std::swap(shape.m, shape.n);
    machine->products[shape] = flops;
  }
  return {};
}

// By JSON pointers: the members, and those of the groups that a machine has, as "flops". (What
// flatten() gives of others may be as large as the square of the text.)
Json Members(const Json& object) {
  std::set<std::string> groups;
  Machine any;
  VisitNumbers(any, [&](const std::string& key, Dimension, double*) {
    if (const size_t slash = key.find('/', 1); slash != key.npos)
      groups.insert(key.substr(1, slash - 1));
  });
  Json members = Json::object();
  for (const auto& [key, value] : object.items()) {
    const Json::json_pointer at = Json::json_pointer() / key;
    if (value.is_structured() && groups.contains(key)) {
      for (const auto& [inner, number] : value.items()) members[(at / inner).to_string()] = number;
    } else {
      members[at.to_string()] = value;
    }
  }
  return members;
}

}  // namespace

Result<Machine> ParseMachine(const std::string& text) {
  auto json = ParseJson(text);
  if (!json.ok()) return json.status();
  if (!json->is_object()) return Status::Invalid("is no JSON object (a machine)");
  Machine machine;
  Json rest = Members(*json);
  const auto take = [&](const std::string& key) {
    Json value;
    if (const auto at = rest.find(key); at != rest.end()) {
      value = *at;
      rest.erase(at);
    }
    return value;
  };
  Status status;
  VisitNumbers(machine, [&](const std::string& key, Dimension dimension, double* number) {
    const Json value = take(key);
    if (!value.is_null() && status.ok()) status = ReadValue(key, value, dimension, number);
  });
  PP_RETURN_IF_ERROR(status);
  if (const Json name = take("/name"); name.is_string()) machine.name = name;
  for (const auto& [key, count] : {std::pair("/node", &machine.node), {"/cards", &machine.cards}}) {
    const Json value = take(key);
    if (value.is_null()) continue;
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMostDevices)
      return Status::Invalid(fmt::format("{} is {} (a whole number from 0 to {})", Dotted(key),
                                         Short(value), kMostDevices));
    *count = value.get<int>();
  }
  PP_RETURN_IF_ERROR(ReadProducts(take("/products"), &machine));
  if (machine.reserved > machine.memory)
    return Status::Invalid(fmt::format("reserved is {} (at most memory, {})",
                                       BytesText(machine.reserved), BytesText(machine.memory)));
  if (!rest.empty())
    return Status::Invalid(
        fmt::format("{} is not known (name, flops, reaches, operator, message, post, "
                    "contention, memory, reserved, memory_bandwidth, node, inside, between, pair, "
                    "cards, card, products)",
                    Shown(Dotted(rest.begin().key()))));
  if (std::all_of(machine.flops.begin(), machine.flops.end(), [](double x) { return x == 0; }))
    return Status::Invalid(R"(flops is missing ({"fp32": "19.5TFLOP/s", ...}))");
  return machine;
}

std::span<const Machine> Machines() {
  static const std::vector<Machine> kAll = [] {
    std::vector<Machine> all;
    for (const Gpu& gpu : kGpus) all.push_back(MachineOf(gpu));
    all.push_back(kCpu);
    return all;
  }();
  return kAll;
}

Result<Machine> FindMachine(const std::string& name_or_file) {
  std::string names;
  for (const Machine& machine : Machines()) {
    if (machine.name == name_or_file) return machine;
    names += machine.name + ", ";
  }
  std::error_code none;
  if (!std::filesystem::exists(name_or_file, none))
    return Status::Invalid(
        fmt::format("--machine: '{}' ({}or a file)", Shown(name_or_file), names));
  const auto text = ReadText(name_or_file, "a machine, as a JSON object", kMostBytes);
  if (!text.ok()) return text.status();
  auto machine = ParseMachine(*text);
  if (!machine.ok()) return machine.status().In(name_or_file);
  if (machine->name.empty()) machine->name = name_or_file;
  return machine;
}

Result<Machine> MachineOf(const std::string& flops) {
  const auto read = ReadQuantity(flops);
  if (!read || read->value <= 0 || read->value > kMost ||
      (read->dimension != Dimension::kNone && read->dimension != Dimension::kFlops))
    return Status::Invalid(fmt::format(
        "--device-flops: '{}' (operations per second, as in 312e12 or 312TFLOP/s)", Shown(flops)));
  Machine machine{.name = flops};
  machine.flops.fill(read->value);
  return machine;
}

std::string ToJson(const Machine& machine) {
  Json json{{"/name", machine.name}, {"/node", machine.node}};
  if (machine.cards > 0) json["/cards"] = machine.cards;
  for (const auto& [shape, flops] : machine.products)
    json[fmt::format("/products/{}x{}x{}", shape.m, shape.n, shape.k)] =
        ToText(Quantity{flops, Dimension::kFlops});
  VisitNumbers(machine, [&](const std::string& key, Dimension dimension, const double* number) {
    if (dimension == Dimension::kNone) {
      json[key] = *number;
    } else if (*number > 0) {
      json[key] = ToText(Quantity{*number, dimension});
    }
  });
  return json.unflatten().dump();
}

}  // namespace pp
