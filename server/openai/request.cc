#include "server/openai/request.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "server/openai/errors.h"
#include "server/openai/fields.h"

namespace sft::server::openai {
namespace {

constexpr int kMostStops = 16, kMostTopOfChat = 20, kMostTop = 5;
constexpr size_t kMostStopBytes = 1024;
constexpr int64_t kMostTokens = int64_t{1} << 53;  // what JSON's numbers hold; cut to what there is

absl::Status ReadStop(Fields& fields, v1::CompleteRequest& request) {
  const Json* stop = fields.Find("stop");
  if (stop == nullptr) return absl::OkStatus();
  const Json list = stop->is_array() ? *stop : Json::array({*stop});
  if (list.size() > kMostStops) {
    return fields.Error("stop",
                        fmt::format("has {} texts, at most {} are taken", list.size(), kMostStops));
  }
  for (const Json& each : list) {
    if (!each.is_string()) return fields.Error("stop", "is neither a text nor a list of texts");
    const std::string text = each.get<std::string>();
    if (text.empty()) return fields.Error("stop", "has an empty text");
    if (text.size() > kMostStopBytes) {
      return fields.Error("stop", fmt::format("has a text of more than {} bytes", kMostStopBytes));
    }
    request.add_stop(text);
  }
  return absl::OkStatus();
}

absl::Status ReadSampling(Fields& fields, v1::CompleteRequest& request) {
  SFT_ASSIGN_OR_RETURN(const auto temperature, fields.Number("temperature", 0, 100));
  if (temperature.has_value()) request.set_temperature(*temperature);
  SFT_ASSIGN_OR_RETURN(const auto top_p, fields.Number("top_p", 0, 1));
  if (top_p == 0) return fields.Error("top_p", "is 0, must be above 0 and at most 1");
  if (top_p.has_value()) request.set_top_p(*top_p);
  SFT_ASSIGN_OR_RETURN(const auto seed, fields.Integer("seed", std::numeric_limits<int64_t>::min(),
                                                       std::numeric_limits<int64_t>::max()));
  if (seed.has_value()) request.set_seed(*seed);
  SFT_ASSIGN_OR_RETURN(const auto top_k, fields.Integer("top_k", -1, 1 << 30));
  if (top_k.has_value()) request.set_top_k(std::max<int64_t>(*top_k, 0));
  SFT_ASSIGN_OR_RETURN(const auto min_p, fields.Number("min_p", 0, 1));
  if (min_p.has_value()) request.set_min_p(*min_p);
  SFT_ASSIGN_OR_RETURN(const auto repetition, fields.Number("repetition_penalty", 0.01, 100));
  if (repetition.has_value()) request.set_repetition_penalty(*repetition);
  SFT_ASSIGN_OR_RETURN(const auto frequency, fields.Number("frequency_penalty", -2, 2));
  if (frequency.has_value()) request.set_frequency_penalty(*frequency);
  SFT_ASSIGN_OR_RETURN(const auto presence, fields.Number("presence_penalty", -2, 2));
  if (presence.has_value()) request.set_presence_penalty(*presence);
  return ReadStop(fields, request);
}

absl::Status ReadStream(Fields& fields, Asked& asked) {
  SFT_ASSIGN_OR_RETURN(const auto stream, fields.Flag("stream"));
  asked.stream = stream.value_or(false);
  const Json* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!asked.stream) return fields.Error("stream_options", "is there without stream");
  if (!options->is_object()) return fields.Error("stream_options", "is no object");
  Fields inner(*options, "stream_options");
  SFT_ASSIGN_OR_RETURN(const auto usage, inner.Flag("include_usage"));
  asked.include_usage = usage.value_or(false);
  inner.Ignore({"include_obfuscation"});  // padding against listeners, which TLS keeps out here
  return inner.RefuseOthers();
}

// What both kinds have.
absl::Status ReadCommon(Fields& fields, Asked& asked) {
  SFT_ASSIGN_OR_RETURN(const auto model, fields.Text("model"));
  asked.model = model.value_or("");
  SFT_ASSIGN_OR_RETURN(const auto n, fields.Integer("n", 1, kMostAnswers));
  asked.request.set_samples(static_cast<int32_t>(n.value_or(1)));
  SFT_RETURN_IF_ERROR(ReadStream(fields, asked));
  SFT_RETURN_IF_ERROR(ReadSampling(fields, asked.request));
  // An empty one changes nothing.
  if (const Json* bias = fields.Find("logit_bias"); bias != nullptr && !bias->empty()) {
    return fields.Error("logit_bias", "is not served here: leave it out");
  }
  fields.Ignore({"user", "store", "metadata", "safety_identifier", "prompt_cache_key"});
  return absl::OkStatus();
}

// Several parts are one text.
absl::StatusOr<std::string> ContentOf(Fields& message, const std::string& path) {
  const Json* content = message.Find("content");
  if (content == nullptr) return message.Error("content", "is missing");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    return message.Error("content", "is neither a text nor a list of parts");
  std::string text;
  for (size_t i = 0; i < content->size(); ++i) {
    const Json& part = (*content)[i];
    const std::string name = fmt::format("content[{}]", i);
    if (!part.is_object()) return message.Error(name, "is no object");
    Fields fields(part, path + "." + name);
    SFT_ASSIGN_OR_RETURN(const auto type, fields.Text("type"));
    if (type != "text") return fields.Error("type", "is not \"text\": only texts can be asked");
    SFT_ASSIGN_OR_RETURN(const auto piece, fields.Text("text"));
    if (!piece.has_value()) return fields.Error("text", "is missing");
    SFT_RETURN_IF_ERROR(fields.RefuseOthers());
    text += *piece;
  }
  return text;
}

absl::Status ReadMessages(Fields& fields, v1::Prompt& prompt) {
  const Json* messages = fields.Find("messages");
  if (messages == nullptr) return fields.Error("messages", "is missing");
  if (!messages->is_array() || messages->empty()) {
    return fields.Error("messages", "is no list of messages");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string path = fmt::format("messages[{}]", i);
    if (!(*messages)[i].is_object()) return ParamError(path, path + " is no object");
    Fields message((*messages)[i], path);
    SFT_ASSIGN_OR_RETURN(auto role, message.Text("role"));
    if (role == "developer") role = "system";
    if (role != "system" && role != "user" && role != "assistant") {
      return message.Error("role", "is not \"system\", \"user\" or \"assistant\"");
    }
    SFT_ASSIGN_OR_RETURN(std::string content, ContentOf(message, path));
    SFT_RETURN_IF_ERROR(message.RefuseOthers());
    v1::ChatMessage& added = *prompt.add_messages();
    added.set_role(*role);
    added.set_content(std::move(content));
  }
  if (prompt.messages().rbegin()->role() != "assistant") return absl::OkStatus();
  return fields.Error("messages", "ends with an answer, and answers are not gone on with here");
}

absl::Status ReadLogprobsOfChat(Fields& fields, v1::CompleteRequest& request) {
  SFT_ASSIGN_OR_RETURN(const auto logprobs, fields.Flag("logprobs"));
  SFT_ASSIGN_OR_RETURN(const auto top, fields.Integer("top_logprobs", 0, kMostTopOfChat));
  if (logprobs.value_or(false)) {
    request.set_logprobs(static_cast<int32_t>(top.value_or(0)));
  } else if (top.has_value()) {
    return fields.Error("top_logprobs", "is there without logprobs");
  }
  return absl::OkStatus();
}

absl::Status ReadPromptText(const Json& value, v1::CompleteRequest& request) {
  request.add_prompts()->set_text(value.get<std::string>());
  return absl::OkStatus();
}

absl::Status ReadPromptTokens(const Json& list, const std::string& path,
                              v1::CompleteRequest& request) {
  if (list.empty()) return ParamError(path, path + " has no tokens");
  SFT_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TokenIds(list, path));
  request.add_prompts()->mutable_tokens()->Add(ids.begin(), ids.end());
  return absl::OkStatus();
}

// A text, texts, tokens, or lists of tokens.
absl::Status ReadPrompts(Fields& fields, v1::CompleteRequest& request) {
  const Json* prompt = fields.Find("prompt");
  if (prompt == nullptr) return fields.Error("prompt", "is missing");
  if (prompt->is_string()) return ReadPromptText(*prompt, request);
  if (!prompt->is_array() || prompt->empty()) {
    return fields.Error("prompt", "is neither a text nor a list of texts or tokens");
  }
  if (prompt->front().is_number()) return ReadPromptTokens(*prompt, "prompt", request);
  if (prompt->size() > kMostAnswers) {
    return fields.Error("prompt", fmt::format("has {} prompts, at most {} are taken at once",
                                              prompt->size(), kMostAnswers));
  }
  for (size_t i = 0; i < prompt->size(); ++i) {
    const Json& each = (*prompt)[i];
    const std::string path = fmt::format("prompt[{}]", i);
    if (!each.is_string() && !each.is_array()) {
      return ParamError(path, path + " is neither a text nor a list of tokens");
    }
    SFT_RETURN_IF_ERROR(each.is_string() ? ReadPromptText(each, request)
                                         : ReadPromptTokens(each, path, request));
  }
  return absl::OkStatus();
}

absl::Status ReadTokensOfCompletion(Fields& fields, v1::CompleteRequest& request) {
  SFT_ASSIGN_OR_RETURN(const auto echo, fields.Flag("echo"));
  request.set_echo(echo.value_or(false));
  SFT_ASSIGN_OR_RETURN(const auto logprobs, fields.Integer("logprobs", 0, kMostTop));
  if (logprobs.has_value()) request.set_logprobs(static_cast<int32_t>(*logprobs));
  if (request.echo() && logprobs.value_or(0) > 1) {
    return fields.Error("logprobs", "is more than 1, and with echo it is 0 or 1");
  }
  SFT_ASSIGN_OR_RETURN(const auto most,
                       fields.Integer("max_tokens", request.echo() ? 0 : 1, kMostTokens));
  if (most.has_value()) request.set_max_new_tokens(*most);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Asked> ReadChat(const std::string& body) {
  SFT_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  Asked asked;
  asked.chat = true;
  SFT_RETURN_IF_ERROR(ReadCommon(fields, asked));
  SFT_RETURN_IF_ERROR(ReadMessages(fields, *asked.request.add_prompts()));
  SFT_RETURN_IF_ERROR(ReadLogprobsOfChat(fields, asked.request));
  SFT_ASSIGN_OR_RETURN(const auto older, fields.Integer("max_tokens", 1, kMostTokens));
  SFT_ASSIGN_OR_RETURN(const auto most, fields.Integer("max_completion_tokens", 1, kMostTokens));
  if (older.has_value() && most.has_value() && *older != *most) {
    return fields.Error("max_tokens", "differs from max_completion_tokens: give one of them");
  }
  if (most.has_value() || older.has_value()) {
    asked.request.set_max_new_tokens(most.has_value() ? *most : *older);
  }
  if (const Json* format = fields.Find("response_format"); format != nullptr) {
    if (*format != Json{{"type", "text"}}) {
      return fields.Error("response_format", "is not {\"type\": \"text\"}: answers are plain text");
    }
  }
  SFT_RETURN_IF_ERROR(fields.RefuseOthers());
  return asked;
}

absl::StatusOr<Asked> ReadCompletion(const std::string& body) {
  SFT_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  Fields fields(json);
  Asked asked;
  SFT_RETURN_IF_ERROR(ReadCommon(fields, asked));
  SFT_RETURN_IF_ERROR(ReadPrompts(fields, asked.request));
  SFT_RETURN_IF_ERROR(ReadTokensOfCompletion(fields, asked.request));
  const int samples = asked.request.samples();
  if (asked.request.prompts_size() > kMostAnswers / samples) {
    return fields.Error(
        "n", fmt::format("is {} with {} prompts: at most {} answers are made at once", samples,
                         asked.request.prompts_size(), kMostAnswers));
  }
  SFT_ASSIGN_OR_RETURN(const auto best_of, fields.Integer("best_of", 1, kMostAnswers));
  if (best_of.has_value() && *best_of != samples) {
    return fields.Error("best_of", "is not n: all answers that are made are given");
  }
  SFT_ASSIGN_OR_RETURN(const auto suffix, fields.Text("suffix"));
  if (!suffix.value_or("").empty()) return fields.Error("suffix", "is not served here");
  SFT_RETURN_IF_ERROR(fields.RefuseOthers());
  return asked;
}

}  // namespace sft::server::openai
