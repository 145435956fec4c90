// What a run is set to, in one table: piperun's options, the plan's attributes, the model's keys.
// All ranks must have the same options; a checkpoint keeps what decides the numbers, and a run that
// continues from it says what is not as it was.
//
// Rows of kRunOptions, kJobAttributes and kProgramAttributes and keys of a config.json are here by
// themselves.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/run/run_options.h"
#include "schema/program.h"

namespace pp {

struct Setting {
  std::string name, text;
  bool decides_numbers = true;  // losses and weights, if only by rounding
};

// Of piperun: those that all ranks have alike. What a checkpoint refuses to change (--seed,
// --loss-scale) decides nothing here.
std::vector<Setting> OptionSettings(const RunOptions& options);
// Of the plan and its job. REQUIRES: the program has a job.
std::vector<Setting> PlanSettings(const Program& program);
// By key of config.json.
std::map<std::string, std::string> ModelSettings(const ModelConfig& model);

// Those options and attributes that decide the numbers.
std::map<std::string, std::string> NumberSettings(const Program& program,
                                                  const RunOptions& options);

// "NAME: NOW (before FOLDER: BEFORE)" for each that both have and that is not as it was.
std::vector<std::string> Differences(const std::map<std::string, std::string>& before,
                                     const std::map<std::string, std::string>& now,
                                     const std::string& folder);

}  // namespace pp
