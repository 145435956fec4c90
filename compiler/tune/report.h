// What pipec tune prints: the best plans, why not another one, and the commands that make and run
// them; as text, as JSON and as a page with throughput against memory.
#pragma once

#include <string>
#include <utility>

#include "compiler/tune/tune.h"

namespace pp {

// The words of commands that stand for what the user typed.
struct TuneWords {
  std::string model;   // --model
  std::string prices;  // "--machine a100-80g"
  std::string plan;    // the file to write
};

class TuneReport {
 public:
  // REQUIRES: all outlive the report; there is a best candidate.
  TuneReport(const TuneOptions& options, const Tuned& tuned, TuneWords words)
      : options_(options), tuned_(tuned), words_(std::move(words)) {}

  std::string Text() const;
  // One object: the question, "best", and "candidates": the fastest ones, then the others by their
  // times or bounds, and those that do not fit, each with the command that compiles it.
  std::string Json() const;
  // One self-contained HTML page (tune/page/).
  std::string Page() const;

 private:
  std::string Row(const Candidate& candidate) const;
  // Sizes of micro-batches of which no profile knows; nothing if there are none.
  std::string Unmeasured() const;
  // Why those that are not shown are not better.
  std::string Losers() const;
  // What compiles the candidate.
  std::string Command(const Candidate& candidate) const;
  // The share of the devices' peak that is useful; 0 where a profile says nothing of a peak.
  double Utilization(double seconds) const;
  double Tokens() const;  // of a step

  const TuneOptions& options_;
  const Tuned& tuned_;
  const TuneWords words_;
};

}  // namespace pp
