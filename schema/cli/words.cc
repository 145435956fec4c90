#include "schema/cli/words.h"

#include <fmt/format.h>

#include <cctype>
#include <map>
#include <string_view>

#include "schema/base/nearest.h"

namespace pp {
namespace {

// Not a file called -, and no negative number.
bool IsOption(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word[1] != '.' &&
         std::isdigit(static_cast<unsigned char>(word[1])) == 0;
}

class Checker {
 public:
  Checker(const CLI::App& app, const std::string& name, std::vector<std::string> words)
      : app_(app), name_(name), help_(name + " --help"), words_(std::move(words)) {
    for (const CLI::Option* option : app.get_options())
      if (option->get_positional()) {
        files_ += option->get_items_expected_max();
        file_ = option->get_name();
        required_ = option->get_required();
      }
  }

  Status Run() {
    bool files_only = false;  // after --
    for (; next_ < words_.size(); ++next_) {
      const bool is_option = !files_only && IsOption(words_[next_]);
      if (is_option && words_[next_] == "--") {
        files_only = true;
        continue;
      }
      if (files_only) last_ = nullptr;
      PP_RETURN_IF_ERROR(is_option ? Option(words_[next_]) : File());
    }
    if (count_ > 0 || !required_ || taken_.empty()) return {};
    return Wrong(
        "{}: '{}' is taken as one of its values, and so there is no {} (which comes before "
        "it; {})",
        taker_, Shown(taken_), file_, help_);
  }

 private:
  template <typename... Values>
  Status Wrong(fmt::format_string<Values...> format, Values&&... values) const {
    return Status::Invalid(fmt::format(format, std::forward<Values>(values)...));
  }

  Status File() {
    const std::string file = Shown(words_[next_]);
    if (last_ != nullptr && last_->get_items_expected_max() > 1) {  // one more of its values
      taken_ = words_[next_], taker_ = last_->get_name();
      return {};
    }
    if (count_++ < files_) return {};
    if (last_ != nullptr)
      return Wrong("{}: '{}' is a second value (one {}; {})", last_->get_name(), file,
                   last_->get_type_name(), help_);
    if (files_ == 0) return Wrong("'{}': {} takes options alone ({})", file, name_, help_);
    return Wrong("'{}': is a second {} ({} takes one; {})", file, file_, name_, help_);
  }

  // "--name", "--name=value", "-n", "-nvalue", or flags, "-ab".
  Status Option(const std::string& word) {
    const bool is_long = word[1] == '-';
    const size_t end = is_long ? std::min(word.find('='), word.size()) : 2;
    const std::string name = word.substr(0, end);
    const CLI::Option* option = app_.get_option_no_throw(name);
    if (option == nullptr) return Unknown(name);
    last_ = nullptr;
    std::string value = word.substr(end);
    if (option->get_expected_max() == 0) {
      if (!is_long && !value.empty()) {
        words_[next_--] = "-" + value;  // more flags
      } else if (!value.empty() && value != "=true" && value != "=false") {
        return Wrong("{}: '{}' (without a value; {})", name, Shown(value.substr(1)), help_);
      }
      return {};
    }
    if (is_long && !value.empty()) value.erase(0, 1);
    if (value.empty()) {
      const size_t after = next_ + 1;
      if (end < word.size() || after == words_.size() || IsKnown(words_[after]))
        return Wrong("{}: without its value ({}; {})", name, option->get_type_name(), help_);
      value = words_[++next_];
    }
    last_ = option;
    if (option->get_items_expected_max() > 1) return {};
    const auto [before, is_first] = values_.try_emplace(option, value);
    if (is_first) return {};
    return Wrong("{}: is given twice, as '{}' and as '{}' (once; {})", name, Shown(before->second),
                 Shown(value), help_);
  }

  bool IsKnown(const std::string& word) const {
    if (!IsOption(word)) return false;
    return word[1] == '-' || app_.get_option_no_throw(word.substr(0, 2)) != nullptr;
  }

  Status Unknown(const std::string& name) const {
    std::vector<std::string> names;
    for (const CLI::Option* option : app_.get_options()) names.push_back(option->get_name());
    return Wrong("unknown option '{}' ({}{})", Shown(name),
                 DidYouMean(name, std::vector<std::string_view>(names.begin(), names.end())),
                 help_);
  }

  const CLI::App& app_;
  const std::string name_, help_;
  std::vector<std::string> words_;
  size_t next_ = 0;
  int files_ = 0, count_ = 0;          // that it takes, and that are given
  std::string file_;                   // what help calls one
  bool required_ = false;              // at least one
  std::string taken_, taker_;          // the last value of an option that takes several, and which
  const CLI::Option* last_ = nullptr;  // whose value the word before was
  std::map<const CLI::Option*, std::string> values_;
};

}  // namespace

Status CheckWords(const CLI::App& app, const std::string& name, std::vector<std::string> words) {
  return Checker(app, name, std::move(words)).Run();
}

}  // namespace pp
