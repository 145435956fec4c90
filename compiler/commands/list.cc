// pipec schemes, passes, ops, values, machines: the tables that the other commands know.
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
#include "schema/text_form.h"

namespace pp {
namespace {

// A row of a table: for people its name and meaning, for programs what `more` has, too.
struct ListRow {
  std::string name, meaning;
  nlohmann::json more = nlohmann::json::object();
};

Status List(const Arguments& a, const std::vector<ListRow>& rows) {
  std::string out;
  auto json = nlohmann::json::array();
  for (const ListRow& row : rows) {
    out += fmt::format("{:<18} {}\n", row.name, row.meaning);
    json.push_back({{"name", row.name}, {"meaning", row.meaning}});
    json.back().update(row.more);
  }
  return PrintOut(a.format == "json" ? json.dump() + "\n" : out);
}

// The fields that an op has, in the order of the text form, each with what stands before it there:
// [{"name":"stage","text":"s"}, ...]. For a WAIT those of any value.
nlohmann::json FieldsOf(const OpInfo& op) {
  FieldSet fields = op.fields;
  if (op.op == Op::kWait)
    for (const KindInfo& kind : Kinds())
      fields = fields | pp::FieldsOf({.op = Op::kWait, .value = kind.kind});
  auto json = nlohmann::json::array();
  ForEachField([&](const auto& info) {
    if (!fields.Has(info.field)) return;
    std::string text(text::WordBefore(op.op, info.field));
    if (!text.empty()) text += ' ';
    json.push_back({{"name", info.name}, {"text", text.append(info.text)}});
  });
  return json;
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
  std::vector<ListRow> rows;
  for (const Pass& pass : Passes())
    rows.push_back(
        {std::string(pass.name),
         fmt::format("{}{}", pass.summary, pass.takes > Form::kSchedule ? " (always)" : "")});
  std::string mario;
  for (const Pass& pass : MarioPasses())
    mario += (mario.empty() ? "" : ",") + std::string(pass.name);
  rows.push_back({"mario", "stands for " + mario});
  return List(a, rows);
}

Status OpsCommand(const Arguments& a) {
  constexpr std::string_view kLanes[] = {"compute", "send", "recv", "reduce"};
  std::vector<ListRow> rows;
  for (const OpInfo& op : Ops())
    rows.push_back({std::string(op.text),
                    std::string(op.meaning),
                    {{"number", static_cast<int>(op.op)},
                     {"lane", kLanes[static_cast<int>(op.lane)]},
                     {"fields", FieldsOf(op)}}});
  return List(a, rows);
}

Status ValuesCommand(const Arguments& a) {
  std::vector<ListRow> rows;
  for (const KindInfo& kind : Kinds())
    rows.push_back({std::string(kind.text),
                    std::string(kind.meaning),
                    {{"number", static_cast<int>(kind.kind)}}});
  return List(a, rows);
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
