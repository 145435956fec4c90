#include "runtime/files/patterns.h"

#include <fmt/format.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace pp {
namespace {

bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

bool IsPattern(const std::string& name) {
  return name.find_first_of("*?[") != name.npos && !IsThere(name) && !IsThere(name + ".idx");
}

Result<std::vector<std::string>> Matches(const std::string& pattern) {
  glob_t found{};
  const int error = glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found);
  const int cause = errno;
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (error == GLOB_NOMATCH)
    return Status::Invalid(
        fmt::format("{}: matches no file (the name of a file, or a pattern that matches some)",
                    Shown(pattern)));
  if (error != 0)
    return Status::Failed(fmt::format("{}: cannot be read: {}", Shown(pattern),
                                      std::generic_category().message(cause)));
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

Result<std::vector<std::string>> ExpandPatterns(const std::vector<std::string>& names) {
  std::vector<std::string> all;
  for (const std::string& name : names) {
    if (!IsPattern(name)) {
      all.push_back(name);
      continue;
    }
    const auto paths = Matches(name);
    PP_RETURN_IF_ERROR(paths.status());
    for (const std::string& path : *paths) {
      const bool is_index = path.ends_with(".idx");
      if (is_index && std::binary_search(paths->begin(), paths->end(),
                                         path.substr(0, path.size() - 4) + ".bin"))
        continue;
      all.push_back(path);
    }
  }
  return all;
}

}  // namespace pp
