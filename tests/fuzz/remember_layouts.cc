// schema/model/layout.cc, which remembers what it made. Most inputs of a fuzzer have one of a few
// jobs, and would spend three quarters of their time on laying out its stages again and again.
#define LayoutStage MakeLayout
#include "schema/model/layout.cc"
#undef LayoutStage

#include <map>
#include <mutex>

namespace pp {

StageLayout LayoutStage(const Job& job, int stage) {
  constexpr size_t kMostJobs = 64;
  static std::mutex mutex;
  static std::vector<std::pair<Job, std::map<int, StageLayout>>> jobs;
  std::lock_guard<std::mutex> lock(mutex);
  auto known = std::find_if(jobs.begin(), jobs.end(), [&](auto& one) { return one.first == job; });
  if (known == jobs.end()) {
    if (jobs.size() == kMostJobs) jobs.clear();
    known = jobs.insert(jobs.end(), {job, {}});
  }
  std::map<int, StageLayout>& layouts = known->second;
  if (!layouts.contains(stage)) layouts.emplace(stage, MakeLayout(job, stage));
  return layouts.at(stage);
}

}  // namespace pp
