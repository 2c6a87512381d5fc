#include "worker/rank/template_report.h"

#include <fmt/format.h>

namespace sft::rank {

void TellTemplate(const spec::JobSpec& spec, const engine::ChatTokenizer& tokenizer,
                  EventLog& events) {
  const std::string& day = tokenizer.settings().day;
  if (tokenizer.asks_for_day()) {
    fmt::print("the chat template prints the day: {} (data.template_date{})\n",
               day.empty() ? "that of each question" : day,
               spec.data.template_date.empty() && !day.empty()
                   ? "; the job is of an earlier version and has none"
                   : "");
  }
  for (const std::string& name : tokenizer.unused_arguments()) {
    const std::string warning = fmt::format(
        "data.template_arguments: the chat template does not speak of {}, so it has no effect",
        name);
    fmt::print("{}\n", warning);
    events.Write(channel::WarningEvent{.message = warning});
  }
}

}  // namespace sft::rank
