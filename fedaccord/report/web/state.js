/* `data` is what page_data() made; `view` is what the reader chose. Each part of the page is drawn from both, anew
   whenever either changes. */

const view = { tuned: 0, client: 0, pair: 0, round: null, hidden: new Set() }; // round null: the last, and follow it
let text = document.getElementById("data").textContent;
let data = JSON.parse(text);
