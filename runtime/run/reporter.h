// Rank 0's process: tells the caller of each step that all ranks have reported, in order, on a
// thread of its own, and completes its checkpoint, as a disk may be slow.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "runtime/files/file_watch.h"
#include "runtime/run/board.h"
#include "runtime/run/inputs.h"
#include "runtime/run/train.h"
#include "schema/base/status.h"
#include "schema/program.h"

namespace pp {

class Reporter {
 public:
  // `news` rings when the board has something new; this rings it when it has told the last step.
  // All outlive it.
  Reporter(const Program& program, const TrainOptions& options, const Inputs& inputs, Board* board,
           Bell* news)
      : program_(program), options_(options), inputs_(inputs), board_(*board), news_(*news) {}

  // `rank` is rank 0: it may continue once a step is told, and fails if that fails.
  void Start(Rank* rank);
  // No rank reports any more: ends after the last step that all have reported.
  void AllEnded();
  void Join();

  // Any thread: the last step has been told.
  bool done() const { return done_.load(); }
  // Any thread: the file operation that it waits for.
  const FileWatch& files() const { return files_; }

  // After Join: how many steps of this run were told, the step of the training that was saved last
  // (0: none), the best validation whose checkpoint is kept, and why the last checkpoint could not
  // be saved, if it could not.
  int64_t last_step() const { return last_step_; }
  int64_t saved_step() const { return saved_step_; }
  std::optional<Manifest::Best> best() const { return best_; }
  Status unsaved() const { return unsaved_; }

 private:
  void Main();
  Status Report(const std::vector<ControlMessage>& reports);
  void FinishSaving(const std::vector<ControlMessage>& reports);
  Status Save(int64_t step, const std::vector<ControlMessage>& reports);
  int64_t UpdatesPerStep() const;

  const Program& program_;
  const TrainOptions& options_;
  const Inputs& inputs_;
  Board& board_;
  Bell& news_;
  Rank* rank_ = nullptr;
  Status unsaved_;
  FileWatch files_;
  std::thread thread_;
  int64_t last_step_ = 0, saved_step_ = 0;
  std::optional<Manifest::Best> best_;
  bool failed_ = false;
  std::atomic<bool> all_ended_{false}, done_{false};
};

}  // namespace pp
