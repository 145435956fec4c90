// pipec schemes, passes, ops, machines: the tables that the other commands know.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/command.h"
#include "compiler/machine/machine.h"
#include "compiler/pass.h"
#include "compiler/scheme.h"
#include "schema/base/units.h"

namespace pp {
namespace {

// A table of names and meanings, for people or for programs.
template <typename Rows, typename Name, typename Meaning>
Status List(const Arguments& a, const Rows& rows, Name name, Meaning meaning) {
  std::string out;
  auto json = nlohmann::json::array();
  for (const auto& row : rows) {
    out += fmt::format("{:<18} {}\n", name(row), meaning(row));
    json.push_back({{"name", name(row)}, {"meaning", meaning(row)}});
  }
  return PrintOut(a.format == "json" ? json.dump() + "\n" : out);
}

}  // namespace

// With what sizes and options each takes.
Status SchemesCommand(const Arguments& a) {
  std::string out;
  auto json = nlohmann::json::array();
  for (const Scheme& row : Schemes()) {
    const std::string_view option = row.option == Scheme::kGroups      ? "--group-size"
                                    : row.option == Scheme::kPipePairs ? "--pipe-pairs"
                                    : row.option == Scheme::kAnyMap    ? "--stage-map"
                                                                       : "";
    std::string sizes = fmt::format("V = {}{}", row.stages_per_device,
                                    row.parts == Scheme::kFree ? " or another" : "");
    for (const std::string_view more : {row.needs, option})
      if (!more.empty()) sizes += fmt::format(", {}", more);
    out += fmt::format("{:<15}{}\n{:<15}  {}\n", row.name, row.summary, "", sizes);
    json.push_back({{"name", row.name},
                    {"meaning", row.summary},
                    {"stages_per_device", row.stages_per_device},
                    {"needs", row.needs},
                    {"option", option}});
  }
  return PrintOut(a.format == "json" ? json.dump() + "\n" : out);
}
Status PassesCommand(const Arguments& a) {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Pass& pass : Passes())
    rows.emplace_back(pass.name, fmt::format("{}{}", pass.summary,
                                             pass.takes > Form::kSchedule ? " (always)" : ""));
  std::string mario;
  for (const Pass& pass : MarioPasses())
    mario += (mario.empty() ? "" : ",") + std::string(pass.name);
  rows.emplace_back("mario", "stands for " + mario);
  return List(
      a, rows, [](const auto& row) { return row.first; },
      [](const auto& row) { return row.second; });
}
Status OpsCommand(const Arguments& a) {
  return List(
      a, Ops(), [](const OpInfo& row) { return std::string(row.text); },
      [](const OpInfo& row) { return std::string(row.meaning); });
}

Status MachinesCommand(const Arguments& a) {
  std::string out;
  if (a.format == "json") {
    for (const Machine& machine : Machines()) out += (out.empty() ? "[" : ",\n") + ToJson(machine);
    return PrintOut(out + "]\n");
  }
  const auto text = [](double value, Dimension dimension) {
    return value > 0 ? ToText({value, dimension}) : "-";
  };
  const auto link = [&](const Link& link) {
    return text(link.bandwidth, Dimension::kBandwidth) + " " + text(link.latency, Dimension::kTime);
  };
  out = fmt::format(
      "{:<10} {:>12} {:>12} {:>8} {:>10} {:>5} {:>13} {:>13}  reaches of products, "
      "attention, memory; contention\n",
      "machine", "bf16", "fp32", "memory", "bandwidth", "node", "inside", "between");
  for (const Machine& m : Machines())
    out += fmt::format(
        "{:<10} {:>12} {:>12} {:>8} {:>10} {:>5} {:>13} {:>13}  {:g} {:g} {:g}; {:g}\n", m.name,
        text(m.flops[static_cast<size_t>(Dtype::kBf16)], Dimension::kFlops),
        text(m.flops[static_cast<size_t>(Dtype::kFp32)], Dimension::kFlops),
        text(m.memory, Dimension::kBytes), text(m.memory_bandwidth, Dimension::kBandwidth), m.node,
        link(m.inside), link(m.between), m.product, m.attention, m.memory_share, m.contention);
  return PrintOut(out);
}

}  // namespace pp
