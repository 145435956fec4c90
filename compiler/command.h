// What the commands of pipec have in common: what the user typed, and how it is checked. A command
// is a function of its arguments, in commands/; pipec.cc has their options.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "compiler/interop.h"
#include "compiler/machine/fit.h"
#include "compiler/pass.h"
#include "compiler/progress.h"
#include "compiler/scheme.h"
#include "compiler/transport.h"
#include "schema/base/disk.h"
#include "schema/base/status.h"
#include "schema/model/attribute.h"
#include "schema/nccl/prove.h"
#include "schema/program.h"
#include "schema/routines.h"
#include "schema/semantics/walk.h"

namespace pp {

// What the user typed, checked (schema/cli/options.h): a member for each option of any command.
// Files are read by the commands.
struct Arguments {
  // What to compile or to tune for.
  std::string scheme;
  std::string routine{kStepRoutine};  // --routine
  Shape shape = {.devices = 0, .microbatches = 0, .stages_per_device = 0};
  // By option, as text: an import's lists say something, too, and are read first. A flag that is
  // given: "true".
  std::map<std::string, std::string> attributes;
  std::optional<Reduce> reduce;
  MemoryFit fit;
  int search_seconds = 0;  // of fit-memory
  std::string costs, machine, device_flops, model;
  std::string lengths;       // a file, of packed documents (document_lengths.h)
  std::string layout;        // of import: a text, or a file of it
  double device_memory = 0;  // of tune, in bytes
  int batch = 0, pp = 0;     // of tune
  double tokens = 0;         // of a training
  std::string beside;        // a layout
  // Files, and what is printed.
  std::vector<std::string> plans;
  std::string output, trace, print_after, format = "text", import_format, color = "auto";
  int device = -1;                                   // of show
  TorchMessages messages = TorchMessages::kCompute;  // of show
  bool time_passes = false, evaluates = false, why = false, quiet = false;
  bool terminal = false;  // standard output is a terminal that wants colours
  // What carries a plan's messages, for simulate and for verify.
  NetworkModel network;
  bool nccl = false;
  nccl::Terms terms;
  std::string communicators = "auto";  // or a sharing's name
  std::string of_nccl;                 // an option that needs it, as given
  // The script that completes words, the page for man(1), and the table of options.
  std::string completion, manual, options;

  Progress* progress = nullptr;  // REQUIRED by every command
};

using Command = Status (*)(const Arguments&);

Status CompileCommand(const Arguments& a);
Status ImportCommand(const Arguments& a);
Status ShowCommand(const Arguments& a);
Status SimulateCommand(const Arguments& a);
Status VerifyCommand(const Arguments& a);
Status TuneCommand(const Arguments& a);
Status SchemesCommand(const Arguments& a);
Status PassesCommand(const Arguments& a);
Status OpsCommand(const Arguments& a);
Status ValuesCommand(const Arguments& a);
Status MachinesCommand(const Arguments& a);

// The machine that was given, or the profile; `costs` is what --costs says, and becomes empty if
// that is a file.
Status ReadPrices(const Arguments& a, std::string* costs, PriceSource* prices);

// What --lengths says of the job's documents, if it is given; after the job's other attributes.
Status ReadLengths(const Arguments& a, Job* job);

// The attributes that were given.
template <typename Table, typename Owner>
Status ReadAttributes(const Arguments& a, const Table& table, Owner* owner) {
  Status status;
  ForEachRow(table, [&]<typename Of, typename T>(const Attribute<Of, T>& row) {
    const auto given = a.attributes.find(row.option);
    if (!status.ok() || given == a.attributes.end() || given->second.empty()) return;
    const std::string& text = given->second;
    status = Read(row, text, &(owner->*row.member)).In(row.option);
    if constexpr (std::is_same_v<T, bool>)
      if (text == "false") owner->*row.member = false;  // a flag, --name=false
  });
  return status;
}

// Says which times of --costs are in seconds only because another one has a unit. `costs`: as
// given.
void NoteBareTimes(const Arguments& a, const std::string& costs);

// Every file that a command reads for these arguments.
std::vector<std::string> Inputs(const Arguments& a);
// That the plan to write (-o) is none of them.
Status CheckOutput(const Arguments& a);
// A scheme's name in the case that the table has: papers write 1F1B.
std::string SchemeName(const std::string& typed);
// A line on standard error beside a command's result, unless --quiet is given.
void Note(const Arguments& a, const std::string& line);
// "1f1b on 4 devices, 8 micro-batches, 168 instructions".
std::string Summary(const Program& program);
// Standard output may be a full disk or a closed pipe.
Status PrintOut(const std::string& text);

// A loaded plan that has been proved safe.
struct VerifiedPlan {
  Program program;
  std::vector<WaitsFor> waits_for;
};
Result<VerifiedPlan> LoadVerified(const Arguments& a, const std::string& path);

}  // namespace pp
