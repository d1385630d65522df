// The page is whole without this: it only hides rows that do not hold what is typed.
const box = document.getElementById("find"), rows = [...document.querySelectorAll("tr[data-words]")];
document.querySelector("label[for=find]").hidden = box.hidden = false;
const show = () => {
  const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
  let count = 0;
  for (const row of rows) {
    row.hidden = !words.every((word) => row.dataset.words.includes(word));
    count += row.hidden ? 0 : 1;
  }
  document.getElementById("count").textContent = words.length ? `${count} of ${rows.length}` : "";
};
box.addEventListener("input", show);
const asked = new URLSearchParams(location.search).get("find");
if (asked) { box.value = asked; show(); }
