// What the commands of pipec have in common: what the user typed, and how it is checked. A command
// is a function of its arguments; pipec.cc has the small ones, commands/ the larger ones.
#pragma once

#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "compiler/machine/fit.h"
#include "compiler/progress.h"
#include "schema/model/attribute.h"
#include "schema/program.h"
#include "schema/status.h"
#include "schema/walk.h"

namespace pp {

// What the user typed. Numbers stay text until they are checked, so that every wrong one
// gets the same kind of error.
struct Arguments {
  std::string scheme, devices, microbatches, stages_per_device, group_size, pipe_pairs, stage_map;
  std::map<std::string, std::string> attributes;  // by option; a flag that is given: "true"
  std::string reduce, costs, machine, device_flops, model;
  std::string output, print_after, format = "text", import_format, device, color = "auto";
  std::string device_memory, global_batch, pp;  // of tune
  std::string memory_limit, search_seconds, objective;
  std::string transport, shared_links, trace, communicators, groups, creation, kernels;
  bool time_passes = false;
  bool why = false;
  bool terminal = false;  // standard output is a terminal that wants colours
  std::vector<std::string> plans;
  Progress* progress = nullptr;  // REQUIRED by every command
};

using Command = Status (*)(const Arguments&);

Status ShowCommand(const Arguments& a);
Status SimulateCommand(const Arguments& a);
Status VerifyCommand(const Arguments& a);
Status TuneCommand(const Arguments& a);
Status SchemesCommand(const Arguments& a);
Status PassesCommand(const Arguments& a);
Status OpsCommand(const Arguments& a);
Status MachinesCommand(const Arguments& a);

// The machine that was given, or the profile; `costs` is what --costs says, and becomes empty if
// that is a file.
Status ReadPrices(const Arguments& a, std::string* costs, PriceSource* prices);

// An integer of at least `least`; *number is unchanged if `text` is empty.
Status ParseNumber(const char* option, const std::string& text, int least, int* number);
Status OneOf(const char* option, const std::string& text,
             std::initializer_list<std::string_view> known);
// The attributes that were given.
template <typename Table, typename Owner>
Status ReadAttributes(const Arguments& a, const Table& table, Owner* owner) {
  Status status;
  ForEachRow(table, [&](const auto& row) {
    const std::string& text = a.attributes.at(row.option);
    if (status.ok() && !text.empty())
      status = Read(row, text, &(owner->*row.member)).In(row.option);
  });
  return status;
}

// That the plan to write (-o) is none of the files that are read.
Status CheckOutput(const Arguments& a);
// A scheme's name in the case that the table has: papers write 1F1B.
std::string SchemeName(const std::string& typed);
// Standard output may be a full disk or a closed pipe.
Status PrintOut(const std::string& text);

// A loaded plan that has been proved safe.
struct VerifiedPlan {
  Program program;
  std::vector<WaitsFor> waits_for;
};
Result<VerifiedPlan> LoadVerified(const Arguments& a, const std::string& path);

}  // namespace pp
