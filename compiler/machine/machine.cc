#include "compiler/machine/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "schema/base/json.h"
#include "schema/base/text_source.h"
#include "schema/base/units.h"

namespace pp {
namespace {

using Json = nlohmann::json;

constexpr double kT = 1e12, kG = 1e9, kGiB = int64_t{1} << 30, kUs = 1e-6;
constexpr int64_t kMostBytes = 1 << 20;
// Keeps sums of everything in a plan far below double's maximum, as with --costs.
constexpr double kMost = 1e24;

// GPUs: peaks (dense) and bandwidths of the vendors' data sheets, NVLink's in one direction; one
// port of 200 (HDR) or 400 Gbit/s (NDR) between nodes for each GPU. Products reach 60 to 80 % of
// the peak, FlashAttention-2 about 200 of an A100's 312 TFLOP/s and 350 of an H100's 989 (Dao,
// 2023, section 4). An H200's shares are fitted to training steps of two models on one
// (kernels/README.md); those of four others are then 1.9 % off on average.
//
// "cpu" is one core with AVX-512 for each rank, and none for what runs beside it. With ten
// microseconds an operator a profile of micro-batches of two sequences predicts those of one, four
// and eight best (GPT-2 and LLaMA, 96 to 256 wide: 4.9 % off, 8.4 % with one microsecond). A
// collective reads, adds and writes what is in no cache; two that meet wake each other, which takes
// 24 to 120 us in a virtual machine.
const Machine kMachines[] = {
    {.name = "a100-40g",
     .flops = {19.5 * kT, 312 * kT, 312 * kT},
     .product = 0.7,
     .attention = 0.6,
     .memory_share = 0.85,
     .launch = 5 * kUs,
     .message = 10 * kUs,
     .memory = 40 * kGiB,
     .memory_bandwidth = 1555 * kG,
     .node = 8,
     .inside = {300 * kG, 5 * kUs},
     .between = {25 * kG, 15 * kUs}},
    {.name = "a100-80g",
     .flops = {19.5 * kT, 312 * kT, 312 * kT},
     .product = 0.7,
     .attention = 0.6,
     .memory_share = 0.85,
     .launch = 5 * kUs,
     .message = 10 * kUs,
     .memory = 80 * kGiB,
     .memory_bandwidth = 2039 * kG,
     .node = 8,
     .inside = {300 * kG, 5 * kUs},
     .between = {25 * kG, 15 * kUs}},
    {.name = "h100-sxm",
     .flops = {67 * kT, 989 * kT, 989 * kT},
     .product = 0.65,
     .attention = 0.35,
     .memory_share = 0.85,
     .launch = 5 * kUs,
     .message = 10 * kUs,
     .memory = 80 * kGiB,
     .memory_bandwidth = 3350 * kG,
     .node = 8,
     .inside = {450 * kG, 5 * kUs},
     .between = {50 * kG, 15 * kUs}},
    {.name = "h200",
     .flops = {67 * kT, 989 * kT, 989 * kT},
     .product = 0.7,
     .attention = 0.25,
     .memory_share = 0.72,
     .launch = 5 * kUs,
     .message = 10 * kUs,
     .memory = 141 * kG,
     .memory_bandwidth = 4800 * kG,
     .node = 8,
     .inside = {450 * kG, 5 * kUs},
     .between = {50 * kG, 15 * kUs}},
    {.name = "cpu",
     .flops = {70 * kG, 70 * kG, 70 * kG},
     .attention = 0.5,
     .launch = 10 * kUs,
     .post = 10 * kUs,
     .contention = 1,
     .memory_bandwidth = 8 * kG,
     .inside = {2 * kG, 30 * kUs},
     .between = {2 * kG, 30 * kUs}},
};

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
  visit("/memory_bandwidth", Dimension::kBandwidth, &machine.memory_bandwidth);
  visit("/inside/bandwidth", Dimension::kBandwidth, &machine.inside.bandwidth);
  visit("/inside/latency", Dimension::kTime, &machine.inside.latency);
  visit("/between/bandwidth", Dimension::kBandwidth, &machine.between.bandwidth);
  visit("/between/latency", Dimension::kTime, &machine.between.latency);
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
Status ReadNumber(const std::string& key, const Json& value, Dimension dimension, double* number) {
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
    if (!value.is_null() && status.ok()) status = ReadNumber(key, value, dimension, number);
  });
  PP_RETURN_IF_ERROR(status);
  if (const Json name = take("/name"); name.is_string()) machine.name = name;
  if (const Json node = take("/node"); !node.is_null()) {
    const bool right = node.is_number_unsigned() && node.get<uint64_t>() <= 1 << 20;
    if (!right)
      return Status::Invalid(fmt::format("node is {} (devices, a whole number)", Short(node)));
    machine.node = node.get<int>();
  }
  if (!rest.empty())
    return Status::Invalid(
        fmt::format("{} is not known (name, flops, reaches, operator, message, post, "
                    "contention, memory, memory_bandwidth, node, inside, between)",
                    Shown(Dotted(rest.begin().key()))));
  if (std::all_of(machine.flops.begin(), machine.flops.end(), [](double x) { return x == 0; }))
    return Status::Invalid(R"(flops is missing ({"fp32": "19.5TFLOP/s", ...}))");
  return machine;
}

std::span<const Machine> Machines() { return kMachines; }

Result<Machine> FindMachine(const std::string& name_or_file) {
  std::string names;
  for (const Machine& machine : kMachines) {
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
