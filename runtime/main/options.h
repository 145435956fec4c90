// The options of piperun: the command line that its table makes (runtime/run/run_options_table.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/comm/agree.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"

namespace CLI {
class App;
}

namespace pp {

// What the user typed, checked.
struct Arguments {
  TrainOptions train;
  // By option, as typed, if it has a value; of a list the last one.
  std::map<std::string, std::string> given;
  Status wrong;  // the first value that is wrong: all ranks are told, so the parser goes on
};

// REQUIRES: the arguments outlive the application.
void DescribeOptions(CLI::App& app, Arguments& arguments);

// After all are parsed. Invalid: the first option whose value is wrong, alone or beside others.
Status FinishOptions(Arguments* arguments);

// The files and folders that a run reads, and so must not write to; some may not exist.
std::vector<std::string> InputPaths(const Arguments& arguments);

// The options that must be the same on all ranks. File names may differ.
std::vector<Item> DigestOptions(const TrainOptions& options);

}  // namespace pp
