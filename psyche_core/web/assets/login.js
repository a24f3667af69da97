// Shows the server a token, in a header; a link may carry it behind #, which browsers do not send to servers.

import { $ } from "./common.js";

async function show(token) {
  const answer = await fetch("api/login", { headers: { Authorization: `Bearer ${token}` } }).catch(() => null);
  if (answer?.ok) location.replace("./");
  else $("answer").textContent = answer ? "This token opens no run here." : "The server does not answer; try again.";
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  show($("token").value.trim());
});
// Until here the browser itself would have sent the form, to a page that knows nothing of it.
for (const part of ["token", "send"]) $(part).disabled = false;

const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", location.pathname);
  show(given);
}
