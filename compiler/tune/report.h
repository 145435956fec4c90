// What pipec tune prints: the best plans, why not another one, and the commands that make and run
// them; as text, as JSON and as a page with throughput against memory.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "compiler/tune/tune.h"

namespace pp {

// The words of commands that stand for what the user typed.
struct TuneWords {
  std::string model;   // --model
  std::string prices;  // "--machine a100-80g"
  std::string plan;    // the file to write
  std::string beside;  // --beside
};

class TuneReport {
 public:
  // REQUIRES: all outlive the report; there is a best candidate.
  TuneReport(const TuneOptions& options, const Tuned& tuned, TuneWords words)
      : options_(options), tuned_(tuned), words_(std::move(words)) {}

  std::string Text() const;
  // One object: the question, "best" (the pick), and "candidates": the pick, the fastest ones, then
  // the others by their times or bounds, and those that do not fit, each with the parts of its
  // step, the command that compiles it and why it is not the pick.
  std::string Json() const;
  // One self-contained HTML page (tune/page/).
  std::string Page() const;

 private:
  std::string Row(const Candidate& candidate) const;
  nlohmann::json JsonOf(const Candidate& candidate) const;
  std::string WhyNot(const Candidate& candidate) const;
  // The exact ones: those that are as fast as the fastest, the simplest of them first.
  std::vector<Candidate> InOrder() const;
  // Sizes of micro-batches of which no profile knows; nothing if there are none.
  std::string Unmeasured() const;
  // Why those that are not shown are not better.
  std::string Losers() const;
  // Of what a step of the pick is made.
  std::string Made() const;
  // On which prices the pick depends, and what is not considered.
  std::string Limits() const;
  // Their layout, and what the pick saves.
  std::string Beside() const;
  // "1f1b pp 8 tp 1 dp 8".
  std::string Layout(const Candidate& candidate) const;
  bool IsAsFast(const Candidate& candidate) const;  // as the fastest, but for the error
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
